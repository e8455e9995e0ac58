// BF16 products of few rows on Hopper: dense, per head, or per expert with `ids`, by TMA and
// mma.sync. The bits are those of bf16_gemm_cuda.h.
#pragma once

#include "ops/linear/bf16_product_cuda.h"

namespace fathom {

inline constexpr int64_t kBf16FewRows = 16;   // of a matrix
inline constexpr int64_t kBf16FewTokens = 8;  // with `ids`

// How a product is cut; zero: chosen by shape.
struct Bf16FewRowsTile {
  int warps = 0;  // of a block: 16 outputs each
  int blocks = 0;  // of a multiprocessor
};

// REQUIRES: Bf16GemmFits; `counts` is null; at most kBf16FewRows tokens, or kBf16FewTokens.
void LaunchBf16FewRows(const Bf16ProductParams& params, cudaStream_t stream,
                       Bf16FewRowsTile tile = {});

}  // namespace fathom
