// BF16 products of few rows on Hopper: dense, per head, or per expert with `ids`, by TMA and
// mma.sync. The bits are those of bf16_gemm.h.
#pragma once

#include "products/cuda/bf16_product.h"

namespace fathom {

inline constexpr int kBf16FewRows = 8;

// REQUIRES: Bf16GemmFits; `counts` is null; at most kBf16FewRows tokens.
void LaunchBf16FewRows(const Bf16ProductParams& params, cudaStream_t stream);

}  // namespace fathom
