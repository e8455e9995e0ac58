// Products per head with BF16 weights as tensor cores multiply them, of any GPU and of Hopper.
#pragma once

#include "ops/ops.h"
#include "products/cuda/bf16_product.h"

namespace fathom {

// Whether weights and layout allow it.
bool Bf16HeadLinearFits(const HeadLinearArgs& args);
// REQUIRES: BF16 weights.
Bf16ProductParams Bf16ProductOf(const HeadLinearArgs& args);

}  // namespace fathom
