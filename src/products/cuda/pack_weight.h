// Packs weights for the products of CUDA GPUs.
#pragma once

#include <memory>

#include "cuda/device.h"
#include "products/packed_weight.h"

namespace fathom {

// `quantize_activations`: to E4M3, where the weight is FP8 and its activations need not be exact.
// kUnimplemented names what cannot be packed so.
Result<std::unique_ptr<PackedWeight>> PackForCuda(CudaDevice& device, const PackArgs& args,
                                                  bool quantize_activations);

}  // namespace fathom
