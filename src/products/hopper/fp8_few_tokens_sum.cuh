// FP8 products of few tokens: the warps that multiply, and the sums of a cluster's blocks.
#pragma once

#include <type_traits>

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

// x as wgmma's operand: the lower half of a descriptor changes, in uniform registers: computed else
// it takes longer than the products.
template <int kPieces>
struct XOperand {
  static constexpr bool kSwizzled = kPieces == kTokens;
  static constexpr int kRunStep = kPieces * kRun / 16, kStep = kSwizzled ? 2 : 2 * kPieces;
  __device__ explicit XOperand(const Memory& memory)
      : low(Uniform(WgmmaOperand(SharedAddress(memory.x), kSwizzled ? 16 : 16 * kPieces))) {}
  // Of the k-th 32 channels, `run` runs further.
  __device__ __forceinline__ WgmmaB Descriptor(int run, int k) const {
    const uint32_t at = low + run * kRunStep + k * kStep;
    return {kSwizzled ? WgmmaDescriptor(at) : WgmmaPlainDescriptor(at)};
  }
  __device__ __forceinline__ void Advance(int runs) { low = Uniform(low + runs * kRunStep); }
  uint32_t low;
};

// The operands of a run.
template <int kPieces>
struct Operands {
  uint32_t weights;
  XOperand<kPieces> x;
};

// Adds kRuns runs from `run` on, in order, whose products are under way together; of: the first
// one's; `weight_scales`: of this warp's channels. `read` is called once wgmma has read them.
template <int kRuns, int kPieces, class Read>
__device__ __forceinline__ void AddRuns(Sums& sums, const Memory& memory,
                                        const Operands<kPieces>& of, int32_t run,
                                        const float* weight_scales, const Read& read) {
  const float2* x_scales = reinterpret_cast<const float2*>(memory.x_scales) + threadIdx.x % 4;
  float product[kRuns][4];
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < kRuns; ++j) {
#pragma unroll
    for (int k = 0; k < kRun / 32; ++k) {
      WgmmaE4M3(product[j], of.weights + j * (kStageBytes / 16) + 2 * k, of.x.Descriptor(j, k),
                k > 0);
    }
  }
  WgmmaCommit();
  float2 scale[kRuns];
#pragma unroll
  for (int j = 0; j < kRuns; ++j) {
    const float2 x_scale = x_scales[(run + j) * (kTokens / 2)];
    const float weight_scale = weight_scales[run + j];
    scale[j] = {x_scale.x * weight_scale, x_scale.y * weight_scale};
  }
  WgmmaWait<0>();
#pragma unroll
  for (int j = 0; j < kRuns; ++j) WgmmaHold(product[j]);
  read();
#pragma unroll
  for (int j = 0; j < kRuns; ++j) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      sums.d[n] = fmaf(product[j][n], n % 2 == 0 ? scale[j].x : scale[j].y, sums.d[n]);
    }
  }
}

// Runs as they come through the ring: of at most four tokens kAtOnce at a time.
template <int kPieces>
__device__ __forceinline__ void Multiply(Sums& sums, const Memory& memory, const Args& a,
                                         int32_t runs, const float* weight_scales) {
  constexpr int kRingAtOnce = kPieces == kTokens ? 1 : kAtOnce;
  const uint32_t all_weights = Uniform(WgmmaOperand(SharedAddress(memory.weights)));
  XOperand<kPieces> x(memory);
  Shared& shared = *memory.shared;
  Ring ring{a.stages};
  const auto add = [&](auto at_once, int32_t run) {
    constexpr int kRuns = decltype(at_once)::value;
    const int32_t index = Uniform(ring.index);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) shared.full[index + j].Wait(ring.parity);
    AddRuns<kRuns>(sums, memory, Operands<kPieces>{all_weights + index * (kStageBytes / 16), x},
                   run, weight_scales, [&] {
                     __syncwarp();
                     const auto j = static_cast<int>(threadIdx.x % 32);
                     if (j < kRuns) shared.empty[index + j].Arrive();
                   });
    x.Advance(kRuns);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) ring.Advance();
  };
  const int32_t count = Uniform(runs);
  int32_t run = 0;
#pragma unroll 1
  for (; run + kRingAtOnce <= count; run += kRingAtOnce) {
    add(std::integral_constant<int, kRingAtOnce>(), run);
  }
  if (kRingAtOnce > 1 && run < count) add(std::integral_constant<int, 1>(), run);
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

// The same as Multiply, to the bit, for such a block.
template <int kPieces>
__device__ __forceinline__ void MultiplyHeld(Sums& sums, const Memory& memory, int32_t runs,
                                             const float* weight_scales) {
  Operands<kPieces> of = {Uniform(WgmmaOperand(SharedAddress(memory.weights))),
                          XOperand<kPieces>(memory)};
  const int32_t count = Uniform(runs);
#pragma unroll 1
  for (int32_t run = 0; run < count; run += kHeldAtOnce) {
    AddRuns<kHeldAtOnce>(sums, memory, of, run, weight_scales, [] {});
    of.weights = Uniform(of.weights + kHeldAtOnce * (kStageBytes / 16));
    of.x.Advance(kHeldAtOnce);
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
