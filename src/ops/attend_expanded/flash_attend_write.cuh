// How expanded attention ends for a warp's 16 tokens: the piece's result, merged into what their
// rows' earlier pieces left by log-sum-exp. Both go through shared memory, where threads' fragments
// become 128 bytes of a token that lie together.
#pragma once

#include <cuda_bf16.h>

#include "cuda/warp.h"
#include "cuda/wgmma_fragment.h"
#include "ops/attend_expanded/flash_attend_items.cuh"

namespace fathom::flash {

constexpr int kValue = 128;
constexpr int kStagedValues = 64;  // at a time

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

// How much of the earlier pieces' output, and of this one's, makes the sum, and its log-sum-exp.
struct Merge {
  float keep = 0, take = 1, lse;

  __device__ static Merge Of(float before, float chunk) {
    const float both = fmaxf(before, chunk);
    const float lse = both + logf(expf(before - both) + expf(chunk - both));
    return {.keep = expf(before - lse), .take = expf(chunk - lse), .lse = lse};
  }
};

// `pair`: where the warp's first token and the item's head stand in out and lse. Nothing is read or
// written of tokens past the row's, or to which nothing of the piece is visible. `staging`: of the
// warpgroup, 64 rows of kStagedValues, swizzled; a warp uses its own 16. All lanes take part.
__device__ __forceinline__ void WriteTokens(const Step& step, int64_t pair, bool first,
                                            const TokenState (&states)[2], const float (&sums)[64],
                                            uint8_t* staging) {
  constexpr float kLn2 = 0.6931471805599453f;
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = threadIdx.x % 128 / kWarp;
  float factor[2], keep[2];
  uint32_t visible[2];  // bit 4 r: token r of the first eight, and of the others
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = states[i].sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    Merge merge = {.lse = states[i].max * kLn2 + logf(sum)};
    const bool seen = states[i].seen > 0;
    float* const lse = step.lse + pair + int64_t{lane / 4 + 8 * i} * step.heads;
    if (seen && !first) merge = Merge::Of(*lse, merge.lse);
    visible[i] = __ballot_sync(kAllLanes, seen);  // all lanes have read what one overwrites
    if (seen && lane % 4 == 0) *lse = merge.lse;
    factor[i] = __fdividef(merge.take, sum);
    keep[i] = merge.keep;
  }
  const uint32_t tile = SharedAddress(staging);
#pragma unroll
  for (int half = 0; half < kValue / kStagedValues; ++half) {
    // Vector i of a lane: 16 bytes of token 4 i + lane / 8.
    const auto each = [&](auto&& use) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 4 * i + lane / 8, vector = lane % 8;
        if ((visible[i / 2] >> (4 * (token % 8)) & 1) == 0) continue;
        uint8_t* const staged = staging + (16 * warp + token) * 128 + ((vector ^ (token % 8)) * 16);
        __nv_bfloat16* const out =
            step.out + (pair + int64_t{token} * step.heads) * kValue + half * kStagedValues;
        use(*reinterpret_cast<uint4*>(staged), reinterpret_cast<uint4*>(out)[vector]);
      }
    };
    __syncwarp();
    if (!first) {
      each([](uint4& staged, const uint4& out) { staged = out; });
      __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t words[4];
      const float* const of = sums + 32 * half + 8 * k;
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = of[j] * factor[j / 2 % 2];
      if (!first) {
        LoadFragment(tile, k, words);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const auto& old = reinterpret_cast<const __nv_bfloat162&>(words[j / 2]);
          y[j] = fmaf(__bfloat162float(j % 2 == 0 ? old.x : old.y), keep[j / 2 % 2], y[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = PackPair(y[2 * j], y[2 * j + 1]);
      StoreFragment(tile, k, words);
    }
    __syncwarp();
    each([](const uint4& staged, uint4& out) { out = staged; });
  }
}

}  // namespace fathom::flash
