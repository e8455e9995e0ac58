// BF16 products of many rows on Hopper (sm_90a): dense, per head, or per expert, by TMA and wgmma.
//
// The bits are those of LaunchBf16Product: the same chains of products (kBf16Chains), the same
// order of their sums. So the number of rows may choose between the two.
#pragma once

#include "ops/linear/bf16_product_cuda.h"

namespace fathom {

// Tiles of the output by one block: rows x channels (of W, if it holds gate and up). kAuto chooses
// by shape.
enum class Bf16Tile : uint8_t { kAuto, k64x64, k64x128, k128x64, k128x128, k128x192 };

// Whether layouts suit TMA and 16-byte stores: no `row_of`.
bool Bf16GemmFits(const Bf16ProductParams& params);
// Whether a matrix has rows enough for it to be the faster kernel.
bool Bf16GemmPays(const Bf16ProductParams& params);
// REQUIRES: Bf16GemmFits.
void LaunchBf16Gemm(const Bf16ProductParams& params, cudaStream_t stream,
                    Bf16Tile tile = Bf16Tile::kAuto);

}  // namespace fathom
