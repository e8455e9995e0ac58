// How expanded attention ends for a token: the piece's result, merged into what the row's earlier
// pieces left by log-sum-exp.
#pragma once

#include <cuda_bf16.h>

#include "cuda/warp.h"
#include "ops/attend_expanded/flash_attend_items.cuh"

namespace fathom::flash {

constexpr int kValue = 128;

// What four lanes have of a token: the greatest score (within Consumer's slack), in powers of 2,
// and this lane's part of the sum of weights.
struct TokenState {
  int32_t seen;
  float max, sum;
};

__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Word j of lane i of four becomes word i of lane j: four words that lie together.
__device__ __forceinline__ void TransposeAmongFour(uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((j & bit) != 0) continue;
      uint32_t& low = words[j];
      uint32_t& high = words[j + bit];
      const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? low : high, bit);
      (upper ? low : high) = other;
    }
  }
}

// How much of the earlier pieces' output, and of this one's, makes the sum, and its log-sum-exp.
struct Merge {
  float keep = 0, take = 1, lse;

  __device__ static Merge Of(float before, float chunk) {
    const float both = fmaxf(before, chunk);
    const float lse = both + logf(expf(before - both) + expf(chunk - both));
    return {.keep = expf(before - lse), .take = expf(chunk - lse), .lse = lse};
  }
};

// Token kToken of a thread's two, which stands at `pair` of out and lse. All lanes take part;
// nothing is written of tokens past the row's, or to which nothing of the piece is visible.
template <int kToken>
__device__ __forceinline__ void WriteToken(const Step& step, int64_t pair, bool first,
                                           TokenState state, const float (&sums)[64]) {
  constexpr float kLn2 = 0.6931471805599453f;
  const bool visible = state.seen > 0, merges = visible && !first;
  const int lane = static_cast<int>(threadIdx.x % 4);
  state.sum += __shfl_xor_sync(kAllLanes, state.sum, 1);
  state.sum += __shfl_xor_sync(kAllLanes, state.sum, 2);
  Merge merge = {.lse = state.max * kLn2 + logf(state.sum)};
  if (merges) merge = Merge::Of(step.lse[pair], merge.lse);
  const float factor = __fdividef(merge.take, state.sum);
  __nv_bfloat16* out = step.out + pair * kValue;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 4 * (4 * part + j) + 2 * kToken;
      float low = sums[at] * factor, high = sums[at + 1] * factor;
      if (merges) {
        const float2 old = __bfloat1622float2(
            reinterpret_cast<const __nv_bfloat162*>(out)[16 * part + 4 * j + lane]);
        low = fmaf(old.x, merge.keep, low);
        high = fmaf(old.y, merge.keep, high);
      }
      words[j] = PackPair(low, high);
    }
    TransposeAmongFour(words);
    if (visible) {
      reinterpret_cast<uint4*>(out)[4 * part + lane] =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  // By now all lanes have read what one of them overwrites.
  if (visible && lane == 0) step.lse[pair] = merge.lse;
}

}  // namespace fathom::flash
