// FP8 products of few tokens: a block's shared memory, and the warp that fills it with weights.
#pragma once

#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "products/cuda/few_pairs.cuh"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_gemm_chains.cuh"

namespace fathom {
namespace fp8_few_tokens {

using fp8_gemm::kRun;

constexpr int kTokens = kFp8FewTokens, kChannels = 64;  // of a block
static_assert(kFp8FewTokens == FewPairs::kPairs && kFp8MostPairs == FewPairs::kMost);
constexpr int kMultipliers = 128, kQuantizers = 256, kThreads = kQuantizers + 32;
constexpr int kStageBytes = kChannels * kRun, kLeastStages = 4, kMostStages = 24;
// On a multiprocessor, at most. Of a dense product more have rings too short to keep memory busy
// (docs/lab/fp8-gemm.md).
constexpr int kBlocksAtATime = 4, kDenseBlocksAtATime = 2;
constexpr int kAtOnce = 2, kHeldAtOnce = 4;  // runs whose products are under way together
constexpr int kSharedBytes = 227 * 1024;     // of a multiprocessor, but for 1 KiB a block

// Enough for pair / topk of kFp8MostPairs pairs.
constexpr int kTokenShareBits = 16;

// Codes of x lie as wgmma reads them, eight tokens at a time. 5 to 8 are swizzled by 128 bytes;
// fewer have no room for eight, and leave it to weights: pieces of eight tokens by 16 channels
// overlap, so many 16 bytes apart, and what is read beyond a piece's tokens makes sums that nobody
// stores. An odd number, so that a run's pieces lie in different banks.
constexpr int32_t PiecesOf(int64_t tokens) {
  return tokens == 1 ? 1 : tokens <= 4 ? 5 : kTokens;
}
constexpr int MostTokens(int pieces) {
  return pieces == 5 ? 4 : pieces;
}
// Where a token's 16 channels `chunk` of a run begin.
template <int kPieces>
__device__ __forceinline__ int32_t PlaceOfX(int32_t run, int32_t token, int32_t chunk) {
  if (kPieces == kTokens) return (run * kTokens + token) * kRun + (chunk ^ token) * 16;
  return run * (kPieces * kRun) + chunk * (kPieces * 16) + token * 16;
}

struct Args {
  const void* x;
  const int32_t *live, *ids;
  const float* weight_scales;
  void* y;
  int64_t x_stride, y_stride;
  int32_t tokens, topk, shared, channels, runs;
  int32_t matrices;
  int32_t parts, part_out, part_tiles, scale_groups;
  int32_t stages;
  int32_t pieces;
  int32_t chains, chain_runs;  // of the longest
  int32_t token_share;         // a pair reads x[pair * token_share >> kTokenShareBits]
  bool early, ue8m0;
};

struct Shared {
  Mbarrier full[kMostStages], empty[kMostStages];
  FewPairs pairs;
  float up[kChannels / 2][kTokens];
};

// What lies where in dynamic shared memory.
struct Memory {
  // `runs`: that the block multiplies, at most. `others`: blocks that send it their sums.
  __device__ Memory(uint8_t* memory, const Args& a, int32_t runs, int32_t others)
      : weights(memory),
        x(weights + a.stages * kStageBytes),
        room(reinterpret_cast<float4*>(x + runs * a.pieces * kRun)),
        x_scales(reinterpret_cast<float*>(room + others * kMultipliers)),
        weight_scales(x_scales + runs * kTokens),
        shared(reinterpret_cast<Shared*>(weight_scales + 2 * runs)) {}
  uint8_t *weights, *x;
  float4* room;                     // for what blocks send: [chains but the first][multipliers]
  float *x_scales, *weight_scales;  // of a chain: [runs][tokens]; [two parts][runs]
  Shared* shared;
};
inline size_t SharedBytes(const Args& a, int64_t stages) {
  return stages * kStageBytes + a.chain_runs * (a.pieces * kRun + (kTokens + 2) * sizeof(float)) +
         (a.chains - 1) * kMultipliers * sizeof(float4) + sizeof(Shared);
}

// The loading warp: every run, in order. What is the same in all lanes comes by shuffles, so that
// the compiler knows it.
template <bool kSilu>
__device__ void LoadWeights(const Memory& memory, const Args& a, const Fp8Runs& runs,
                            const CUtensorMap* weight_map, int32_t weight_channel) {
  const int32_t channel = Uniform(weight_channel);
  Ring ring{a.stages};
  for (int32_t run = runs.first; run < runs.end(); ++run, ring.Advance()) {
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    Mbarrier& full = memory.shared->full[ring.index];
    memory.shared->empty[ring.index].Wait(ring.parity ^ 1);
    if (ElectLane()) {
      uint8_t* to = memory.weights + ring.index * kStageBytes;
      full.ArriveExpect(kStageBytes);
      TmaLoad2(to, weight_map, full, kTmaEvictFirst, run * kRun, channel);
      if constexpr (kSilu) {
        TmaLoad2(to + kStageBytes / 2, weight_map, full, kTmaEvictFirst, run * kRun,
                 channel + a.part_out);
      }
    }
    __syncwarp();
  }
}

}  // namespace fp8_few_tokens
}  // namespace fathom
