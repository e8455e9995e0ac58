// BF16 products by Hopper's kernels (sm_90a): one order of sums for few tokens and for many.
#pragma once

#include "products/cuda/bf16_product.h"

namespace fathom {

// Where layouts do not suit TMA (Bf16GemmFits) those of any GPU multiply: by the shape of the
// weights and the layout of x, never by the number of tokens. REQUIRES: Bf16ProductFits.
Bf16ProductLaunch LaunchBf16ProductOnHopper;

}  // namespace fathom
