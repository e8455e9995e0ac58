// BF16 products of few tokens on Hopper: dense, per head, or per expert with `ids`, by TMA and
// mma.sync. The bits are those of bf16_gemm.h.
#pragma once

#include "products/cuda/bf16_product.h"

namespace fathom {

inline constexpr int kBf16FewTokens = 8;

// REQUIRES: Bf16GemmFits; `counts` is null; at most kBf16FewTokens tokens.
void LaunchBf16FewTokens(const Bf16ProductParams& params, cudaStream_t stream);

}  // namespace fathom
