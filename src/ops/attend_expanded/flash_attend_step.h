// What the kernel of expanded attention is given, and how the host starts it.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/context_piece.h"

namespace fathom::flash {

inline constexpr int kKeys = 128;          // positions of a tile
inline constexpr int kTokensOfGroup = 64;  // of a warpgroup

struct Maps {
  CUtensorMap q, kv, rope;
};

struct Step {
  const int32_t* positions;
  __nv_bfloat16* out;
  float* lse;
  int32_t heads;
  float scale_log2;
  ContextPieces pieces;
  // Set by StartFlashAttend: how many items there are, and where they are counted that were handed
  // out (but for each block's first).
  int32_t items = 0;
  uint32_t* handed_out = nullptr;
};

// With 64 tokens an item, or with 128: `groups` 1 or 2. Bits do not depend on it.
cudaError_t StartFlashAttend(const Maps& maps, const Step& step, int groups, cudaStream_t stream);

}  // namespace fathom::flash
