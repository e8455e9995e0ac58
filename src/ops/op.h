// What an operation is: a checked function and the work space it needs.
//
// Overlap: ops take effect in the order in which they are enqueued. An argument that a contract
// calls "early" is all, beside weights, that an op may read before the ops in front of it have
// ended: none of those that the contract names writes it, and it was there before the first of them
// began. They are part of the contract because on a GPU that first one's kernels must let the next
// begin only after they have waited themselves (docs/design/cuda-backend.md, "A step"). No bit
// depends on it, and a table may read early arguments in order, like all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/stream.h"

namespace fathom {

// What an op runs with. Ops enqueue on the stream; they never allocate and never synchronise.
struct OpContext {
  Stream& stream;
  std::span<std::byte> workspace;  // at least what Workspace(args) answered; aligned to 64 bytes
};

// An entry of a backend's table. Check(const Args&) of the op's folder states its shapes at run
// time.
template <class Args>
struct Op {
  void (*run)(OpContext&, const Args&) = nullptr;
  // Bytes of work space for these capacities on this stream; null means none. What has several
  // parts is laid out by an Arena, in code that measuring and running share.
  size_t (*workspace)(const Stream&, const Args&) = nullptr;

  void operator()(OpContext& context, const Args& args) const {
    Check(args);
    run(context, args);
  }
  // Views may lack memory here: only shapes count.
  size_t Workspace(const Stream& stream, const Args& args) const {
    Check(args);
    return workspace == nullptr ? 0 : workspace(stream, args);
  }
};

// What a backend's kernels are made for: a model beyond is refused when it loads.
struct OpLimits {
  int64_t norm_width = INT64_MAX;  // channels of rms_norm
  int64_t experts = INT64_MAX;     // that route chooses from
  int64_t topk = INT64_MAX;        // that it chooses for a token
  int64_t ranks = INT64_MAX;       // that a model may be cut over
};

}  // namespace fathom
