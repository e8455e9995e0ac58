// Packs weights for the CPU's products.
#pragma once

#include <memory>
#include <optional>

#include "cpu/thread_pool.h"
#include "products/packed_weight.h"

namespace fathom {

// How products are to take matrices, but those of exact activations.
struct CpuPacking {
  bool quantize_activations = false;        // to E4M3, where the weight is FP8
  bool round_activations = false;           // to BF16, where the weight is FP8 or BF16
  std::optional<WeightFormat> quantize_to;  // kInt8 or kInt4
};

// kUnimplemented names what cannot be packed so.
Result<std::unique_ptr<PackedWeight>> PackForCpu(ThreadPool& pool, const PackArgs& args,
                                                 const CpuPacking& wanted);

}  // namespace fathom
