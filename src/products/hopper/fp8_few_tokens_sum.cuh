// FP8 products of few tokens: the warps that multiply, and the sums of a cluster's blocks.
#pragma once

#include "cuda/cluster.h"
#include "cuda/fence.h"
#include "cuda/wgmma_fp8.h"
#include "products/hopper/fp8_few_tokens_load.cuh"

namespace fathom {
namespace fp8_few_tokens {

// The sums of a thread: of channels 16 warp + lane / 4 and 8 further, and of two tokens each.
struct Sums {
  float d[4];
  __device__ static int Channel(int i) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
  }
  __device__ static int Token(int i) { return threadIdx.x % 4 * 2 + i % 2; }
};

// `weight_scales`: of this warp's channels.
__device__ inline void Multiply(Sums& sums, const Memory& memory, const Args& a, int32_t runs,
                                const float* weight_scales) {
  const uint32_t all_weights = WgmmaOperand(SharedAddress(memory.weights));
  const uint32_t all_x = WgmmaOperand(SharedAddress(memory.x));
  const float2* x_scales = reinterpret_cast<const float2*>(memory.x_scales) + threadIdx.x % 4;
  Ring ring;
  for (int32_t run = 0; run < runs; ++run, ring.Advance(a.stages)) {
    float product[4];
    memory.shared->full[ring.index].Wait(ring.parity);
    const uint32_t weights = all_weights + ring.index * (kStageBytes / 16);
    const uint32_t x = all_x + run * (kTokens * kRun / 16);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kRun / 32; ++k) {
      WgmmaE4M3(product, weights + 2 * k, x + 2 * k, k > 0);
    }
    WgmmaCommit();
    const float2 x_scale = x_scales[run * (kTokens / 2)];
    const float weight_scale = weight_scales[run];
    const float scale[2] = {x_scale.x * weight_scale, x_scale.y * weight_scale};
    WgmmaWait<0>();
    WgmmaHold(product);
    __syncwarp();
    if (threadIdx.x % 32 == 0) memory.shared->empty[ring.index].Arrive();
#pragma unroll
    for (int n = 0; n < 4; ++n) sums.d[n] = fmaf(product[n], scale[n % 2], sums.d[n]);
  }
}

// Whether each of a block's runs has a stage of its own, so that all its weights lie in shared
// memory before x is there.
__device__ __forceinline__ bool HoldsAll(const Args& a, int32_t runs) {
  return a.stages >= runs && runs % kHeldAtOnce == 0;
}

// The weights of such a block. Whole warps.
__device__ inline void AwaitWeights(const Memory& memory, int32_t runs) {
  for (int32_t run = threadIdx.x % 32; run < runs; run += 32) memory.shared->full[run].Wait(0);
  __syncwarp();
}

// The same as Multiply, to the bit, for such a block: the products of several runs are under way
// together. Of descriptors only the lower halves change, and these are uniform: computing them else
// takes longer than the products.
__device__ inline void MultiplyHeld(Sums& sums, const Memory& memory, int32_t runs,
                                    const float* weight_scales) {
  constexpr uint32_t kWeightStep = kStageBytes / 16, kXStep = kTokens * kRun / 16;
  uint32_t weights = Uniform(WgmmaOperand(SharedAddress(memory.weights)));
  uint32_t x = Uniform(WgmmaOperand(SharedAddress(memory.x)));
  const float2* x_scales = reinterpret_cast<const float2*>(memory.x_scales) + threadIdx.x % 4;
  const int32_t count = Uniform(runs);
#pragma unroll 1
  for (int32_t first = 0; first < count; first += kHeldAtOnce) {
    float product[kHeldAtOnce][4];
    WgmmaFence();
#pragma unroll
    for (int j = 0; j < kHeldAtOnce; ++j) {
#pragma unroll
      for (int k = 0; k < kRun / 32; ++k) {
        WgmmaE4M3(product[j], weights + j * kWeightStep + 2 * k, x + j * kXStep + 2 * k, k > 0);
      }
    }
    WgmmaCommit();
    weights = Uniform(weights + kHeldAtOnce * kWeightStep);
    x = Uniform(x + kHeldAtOnce * kXStep);
    float2 scale[kHeldAtOnce];
#pragma unroll
    for (int j = 0; j < kHeldAtOnce; ++j) {
      const float2 x_scale = x_scales[(first + j) * (kTokens / 2)];
      const float weight_scale = weight_scales[first + j];
      scale[j] = {x_scale.x * weight_scale, x_scale.y * weight_scale};
    }
    WgmmaWait<0>();
#pragma unroll
    for (int j = 0; j < kHeldAtOnce; ++j) {
      WgmmaHold(product[j]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        sums.d[n] = fmaf(product[j][n], n % 2 == 0 ? scale[j].x : scale[j].y, sums.d[n]);
      }
    }
  }
}

// Adds up the chains of a cluster's blocks, in the first of them, which this one then is; another
// has nothing more to do. Those who multiply; all have arrived once before.
__device__ inline bool AddChains(Sums& sums, const Memory& memory, const Args& a) {
  const uint32_t rank = ClusterRank();
  float4* const room = memory.room + threadIdx.x;
  ClusterWait();  // all have begun
  if (rank > 0) {
    StoreAtPeer(PeerAddress(room + (rank - 1) * kMultipliers, 0),
                make_float4(sums.d[0], sums.d[1], sums.d[2], sums.d[3]));
  }
  ClusterSync();
  if (rank > 0) return false;
  for (int32_t chain = 1; chain < a.chains; ++chain) {
    const float4 part = room[(chain - 1) * kMultipliers];
    const float numbers[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.d[i] = __fadd_rn(sums.d[i], numbers[i]);
  }
  return true;
}

}  // namespace fp8_few_tokens
}  // namespace fathom
