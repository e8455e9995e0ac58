// BF16 products of many tokens on Hopper (sm_90a): dense, per head, or per expert, by TMA and
// wgmma.
//
// A number's sum is taken in ascending order by the tensor core, 16 channels at a time. Few tokens
// have a kernel of the same bits (bf16_few_tokens.h), so that their number may choose.
#pragma once

#include "products/cuda/bf16_product.h"

namespace fathom {

// Tiles of the output by one block: tokens x channels (of W, if it holds gate and up); 256x256 by
// two. kAuto chooses by shape.
enum class Bf16Tile : uint8_t {
  kAuto,
  k64x64,
  k64x128,
  k128x64,
  k128x128,
  k128x144,  // not for gate and up: 128x128
  k128x256,
  k256x256
};

// Whether layouts suit TMA and 16-byte stores: no `token_of`. Does not depend on the number of
// tokens.
bool Bf16GemmFits(const Bf16ProductParams& params);
// REQUIRES: Bf16GemmFits; no `ids`.
void LaunchBf16Gemm(const Bf16ProductParams& params, cudaStream_t stream,
                    Bf16Tile tile = Bf16Tile::kAuto);

}  // namespace fathom
