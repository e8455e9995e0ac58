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

// By what a thread scales earlier pieces' output (keep) and its own sums (take), of its two tokens.
struct Factors {
  float keep[2], take[2];
  uint32_t visible[2];  // bit 4 r: token r of the first eight, and of the others
};

// `out`: of the warp's first token. `staging`: of the warp, 16 rows of kStagedValues, swizzled;
// `tile`: of the warpgroup, as shared memory's instructions name it.
template <bool kFirst>
__device__ __forceinline__ void WriteValues(__nv_bfloat16* out, int64_t stride,
                                            const Factors& factors, const float (&sums)[64],
                                            uint8_t* staging, uint32_t tile) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), vector = lane % 8;
  // Vector i of a lane: 16 bytes of this token.
  const auto token = [&](int i) { return 4 * i + lane / 8; };
  const auto visible = [&](int i) {
    return (factors.visible[i / 2] >> (4 * (token(i) % 8)) & 1) != 0;
  };
#pragma unroll
  for (int half = 0; half < kValue / kStagedValues; ++half) {
    uint4* staged[4];
    uint4* to[4];
    uint4 values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      staged[i] =
          reinterpret_cast<uint4*>(staging + token(i) * 128 + (vector ^ (token(i) % 8)) * 16);
      to[i] = reinterpret_cast<uint4*>(out + token(i) * stride + half * kStagedValues) + vector;
    }
    if constexpr (!kFirst) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = visible(i) ? *to[i] : uint4{};
    }
    __syncwarp();
    if constexpr (!kFirst) {
#pragma unroll
      for (int i = 0; i < 4; ++i) *staged[i] = values[i];
      __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t words[4];
      const float* const of = sums + 32 * half + 8 * k;
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = of[j] * factors.take[j / 2 % 2];
      if constexpr (!kFirst) {
        LoadFragment(tile, k, words);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const auto& old = reinterpret_cast<const __nv_bfloat162&>(words[j / 2]);
          y[j] = fmaf(__bfloat162float(j % 2 == 0 ? old.x : old.y), factors.keep[j / 2 % 2], y[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = PackPair(y[2 * j], y[2 * j + 1]);
      StoreFragment(tile, k, words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = *staged[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (visible(i)) *to[i] = values[i];
    }
  }
}

// `pair`: where the warp's first token and the item's head stand in out and lse. Nothing is read or
// written of tokens past the row's, or to which nothing of the piece is visible. `staging`: of the
// warpgroup. All lanes take part.
__device__ __forceinline__ void WriteTokens(const Step& step, int64_t pair, bool first,
                                            const TokenState (&states)[2], const float (&sums)[64],
                                            uint8_t* staging) {
  constexpr float kLn2 = 0.6931471805599453f;
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = threadIdx.x % 128 / kWarp;
  Factors factors;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = states[i].sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    Merge merge = {.lse = states[i].max * kLn2 + logf(sum)};
    const bool seen = states[i].seen > 0;
    float* const lse = step.lse + pair + int64_t{lane / 4 + 8 * i} * step.heads;
    if (seen && !first) merge = Merge::Of(*lse, merge.lse);
    factors.visible[i] = __ballot_sync(kAllLanes, seen);  // all have read what one overwrites
    if (seen && lane % 4 == 0) *lse = merge.lse;
    factors.take[i] = __fdividef(merge.take, sum);
    factors.keep[i] = merge.keep;
  }
  __nv_bfloat16* const out = step.out + pair * kValue;
  const int64_t stride = int64_t{step.heads} * kValue;
  uint8_t* const of_warp = staging + 16 * warp * 128;
  const uint32_t tile = SharedAddress(staging);
  if (first) {
    WriteValues<true>(out, stride, factors, sums, of_warp, tile);
  } else {
    WriteValues<false>(out, stride, factors, sums, of_warp, tile);
  }
}

}  // namespace fathom::flash
