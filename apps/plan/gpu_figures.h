// What a GPU can do, as measured, and what fathom's kernels reach of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

struct GpuFigures {
  std::string name;
  bool hopper = false;          // which table of ops it runs
  double memory_bytes = 0;      // that a fresh process finds free
  double read_bytes_per_s = 0;  // its memory
  double bf16_operations_per_s = 0;
  double fp8_operations_per_s = 0;
  double peer_bytes_per_s = 0;  // another GPU's memory

  double launch_s = 0;  // of a kernel that replays in a graph, until the next one computes
  // More for each peer but the first, and for each byte from each peer.
  double small_all_reduce_s = 0, small_all_reduce_s_per_peer = 0, small_all_reduce_s_per_byte = 0;
  double barrier_s = 0;  // of ranks

  // Of read_bytes_per_s, where bytes decide.
  double product_read_share = 0, expert_read_share = 0, cache_read_share = 0;
  // Of the operations of the type that is multiplied, where operations decide.
  double bf16_product_share = 0, fp8_product_share = 0;
  double expert_product_share = 0;                // of what those shares leave
  double absorbed_share = 0, expanded_share = 0;  // of bf16_operations_per_s
  double logit_reads = 0;  // how often a step that samples might read its logits in that time
};

inline constexpr char kGpuTypes[] = "h200";

// The figures of a GPU of this type that are stored in this binary: gpu_types/.
Result<GpuFigures> GpuType(std::string_view type);

// Of a file as those in gpu_types/.
Result<GpuFigures> ParseGpuFigures(std::string_view json);

}  // namespace fathom
