// BF16 products of few tokens on Hopper, dense or per head, whose weights all blocks' shared memory
// holds at once, so that most of them are there when x is. The bits are those of bf16_gemm.h.
#pragma once

#include "products/cuda/bf16_product.h"

namespace fathom {

inline constexpr int kBf16HeldTokens = 8;

// By shape and number of tokens. REQUIRES: Bf16GemmFits.
bool Bf16HeldFits(const Bf16ProductParams& params);
// REQUIRES: Bf16HeldFits.
void LaunchBf16Held(const Bf16ProductParams& params, cudaStream_t stream);

}  // namespace fathom
