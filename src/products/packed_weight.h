// Weights as the products of one kind of hardware want them: opaque to everything above ops/.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "quant/weight_tensor.h"
#include "tensor/stream.h"

namespace fathom {

// `count` matrices [out, in] of one format, laid out by the backend that packed them. Only ops of
// the same table may be given it.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  // How the numbers are stored, after packing; not what is multiplied with them.
  WeightFormat format;
  // Activations are quantised to E4M3, per token and run; only of E4M3 weights.
  bool quantize_activations = false;
  bool scale_ue8m0 = false;  // their scales are powers of two
  int64_t count = 1;         // experts or heads; 1 for a plain matrix
  int64_t out = 0, in = 0;
  size_t bytes = 0;

  // The channels in runs: what shares a scale of the weight, where that has tiles, and what of an
  // activation is quantised together. Where a weight was cut inside a tile its first run is short.
  Groups channel_runs() const {
    return {.size = kScaleTile, .offset = format.scales.channels.offset};
  }
  int64_t runs() const { return channel_runs().Count(in); }
  int64_t run_begin(int64_t r) const { return channel_runs().Begin(r); }
  int64_t run_end(int64_t r) const { return channel_runs().End(r, in); }
};

// How a matrix is put together: its parts follow each other along the output dimension (gate and
// up), each with its own scale tiles.
struct WeightSource {
  std::vector<WeightTensor> parts;
};

struct PackArgs {
  std::span<const WeightSource> matrices;  // [count], of equal shape
  // Never multiply with quantised activations (absorbed W_UK, W_UV).
  bool exact_activations = false;
  bool scale_ue8m0 = false;
};

// The contract; a violation is a bug and stops the process.
void Check(const PackArgs&);

}  // namespace fathom
