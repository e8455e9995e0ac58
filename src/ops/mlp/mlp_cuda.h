// MLPs with BF16 weights: two products by tensor cores, of any GPU or of Hopper.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "products/cuda/bf16_product.h"

namespace fathom {

// Whether weights and layout allow it.
bool Bf16MlpFits(const MlpArgs& args);
// In the work space that MlpCudaWorkspace answers. REQUIRES: Bf16MlpFits.
void LaunchBf16Mlp(const MlpArgs& args, std::byte* workspace, Bf16ProductLaunch& launch,
                   cudaStream_t stream);

}  // namespace fathom
