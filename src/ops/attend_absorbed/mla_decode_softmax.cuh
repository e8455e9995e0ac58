// The softmax of the wide MLA decode kernels. Its order of operations is a token's alone: tiles of
// a part in order, whichever block or warpgroup computes them. So each operation is written as it
// is rounded, and none is left to the compiler to contract.
#pragma once

#include <cuda_bf16.h>

#include "cuda/exp2.h"
#include "cuda/warp.h"
#include "cuda/wgmma_fragment.h"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

// A pair's running maximum moves when a score is above it by so much, in units of log2: sums then
// need no rescaling for most tiles, and weights are at most 2^8.
inline constexpr float kSlack = 8;

// A pair's running maximum, in units of log2.
struct RunningMax {
  float value = -INFINITY;

  // Takes in the greatest score of the next tile. What earlier sums shrink by.
  __device__ __forceinline__ float Next(float best, float slack = kSlack) {
    const float before = value;
    if (best > __fadd_rn(before, slack)) value = best;
    return Exp2(__fsub_rn(before, base()));
  }
  // What weights are relative to: nothing seen yet, all of them are 0.
  __device__ __forceinline__ float base() const { return value == -INFINITY ? 0 : value; }
};

// Scores of a tile of 64 x 64, as a product leaves them, and the weights that come of them, as A of
// the next one. Of what a thread holds, the pairs r and r + 8 are indexed 0 and 1.

// The greatest score of a pair, in units of log2; all lanes of a quad get it.
__device__ __forceinline__ float BestScore(const float (&scores)[32], int i, float scale_log2) {
  float best = fmaxf(scores[2 * i], scores[2 * i + 1]);
#pragma unroll
  for (int j = 1; j < 8; ++j) {
    best = fmaxf(best, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
  }
  best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
  return __fmul_rn(fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2)), scale_log2);
}

__device__ __forceinline__ void MakeWeights(const float (&scores)[32], float scale_log2,
                                            const float (&base)[2], uint32_t (&weights)[16]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const __nv_bfloat162 pair =
        __floats2bfloat162_rn(Exp2(__fmaf_rn(scores[2 * j], scale_log2, -base[j % 2])),
                              Exp2(__fmaf_rn(scores[2 * j + 1], scale_log2, -base[j % 2])));
    weights[j] = *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// Sums are of rounded weights: what a greatest one is rounded by falls out of the quotient.
__device__ __forceinline__ void AddWeights(const uint32_t (&weights)[16], float (&sum)[2]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    sum[j % 2] = __fadd_rn(sum[j % 2], __fadd_rn(__uint_as_float(weights[j] << 16),
                                                 __uint_as_float(weights[j] & 0xffff0000)));
  }
}

// -inf for positions of a tile beyond the last that each of the two pairs sees.
__device__ __forceinline__ void MaskScores(float (&scores)[32], int32_t tile_begin,
                                           const int32_t (&position)[2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (tile_begin + 8 * j + 2 * (lane % 4) + k > position[i]) {
          scores[4 * j + 2 * i + k] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace fathom::mla
