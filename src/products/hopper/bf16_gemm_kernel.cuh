// BF16 products of many tokens on Hopper.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  persistent blocks in pairs walk tiles; one thread feeds a ring of shared-memory
//                  stages (64 channels of x and of W each) by TMA, warpgroups multiply 64 tokens by
//                  kMmaN
//   bytes, FLOPs:  in x (tokens + out) + tokens x out numbers; 2 x tokens x out x in FLOPs
//   accumulator:   fp32 in the tensor core, in ascending order, 16 channels at a time
//   builds on:     a loading warp ahead of warpgroups that share a tile, as CUTLASS's persistent
//                  cooperative kernels for Hopper; multicast of what a pair shares
//   expected time: docs/design/bf16-gemm.md
#pragma once

#include "cuda/fence.h"
#include "cuda/tma.h"
#include "cuda/wgmma_bf16.h"
#include "products/hopper/bf16_gemm_store.cuh"
#include "products/hopper/bf16_gemm_tile.cuh"

namespace fathom::bf16_gemm {

// A stage's part of x: one lane.
template <class T>
__device__ __forceinline__ void LoadX(uint8_t* to, const CUtensorMap& map, Mbarrier& full,
                                      uint64_t policy, uint16_t blocks, const int32_t (&at)[3]) {
  if constexpr (T::kPairChannels == 2) {
    TmaLoadMulticast3(to, &map, full, policy, blocks, at);
  } else {
    TmaLoad3(to, &map, full, policy, at);
  }
}

// The loading warp: every stage of every tile, in the order in which they are multiplied. Weights
// are asked for before the kernels before have ended, as far as the stages reach; x is not.
template <class T>
__device__ void Load(Shared<T>& shared, const Args& args, const Maps& maps, int32_t index,
                     int32_t step, uint32_t rank) {
  const uint32_t x_bytes = T::kPairChannels * args.x_box_tokens * kChunkBytes;
  constexpr uint32_t kWeightBytes = T::kN * kChunkBytes;
  const uint64_t weight_policy = args.read_once ? kTmaEvictFirst : kTmaEvictNormal;
  const int32_t pair_token = rank / T::kPairChannels, pair_channel = rank % T::kPairChannels;
  const auto same_tokens =
      static_cast<uint16_t>(((1 << T::kPairChannels) - 1) << pair_token * T::kPairChannels);
  const auto same_channels =
      static_cast<uint16_t>((1 | (T::kPairTokens - 1) << T::kPairChannels) << pair_channel);
  const int32_t part = pair_channel * args.x_box_tokens;  // of x: what this block loads
  const int32_t matrix_channels = args.channels * (T::kSilu ? 2 : 1);
  const int32_t box_step = T::kSilu ? args.channels : T::kBoxChannels;
  RingPosition<T::kStages> ring;
  Work work;
  bool first = true;
  for (; FindWork(shared, args, index, rank, work); index += step, first = false) {
    const int32_t x_token = Uniform(work.token);
    const int32_t head = Uniform(args.counts == nullptr ? work.group : 0);
    const int32_t weight_channel = Uniform(work.group * matrix_channels + work.channel);
    // A pair's second block may have no channels or tokens: what it multiplies is not stored.
    const bool has_channels = Uniform(work.channels) > 0, has_tokens = Uniform(work.tokens) > 0;
    const uint32_t bytes = (has_channels ? kWeightBytes : 0) + (has_tokens ? x_bytes : 0);
    const auto load_weights = [&](uint32_t stage, int32_t chunk) {
      Mbarrier& full = shared.full[stage];
      full.ArriveExpect(bytes);
      if (!has_channels) return;
      uint8_t* to = shared.weights[stage];
      if constexpr (T::kPairTokens == 2) {
        TmaLoadMulticast2(to + pair_token * T::kBoxChannels * kChunkBytes, &maps.weights, full,
                          weight_policy, same_channels,
                          {chunk * kBf16Chunk, weight_channel + pair_token * box_step});
      } else {
#pragma unroll
        for (int across = 0; across < T::kAcross; ++across) {
#pragma unroll
          for (int box = 0; box < T::kWeightBoxes; ++box) {
            TmaLoad2(to + (across * T::kMmaN + box * T::kBoxChannels) * kChunkBytes, &maps.weights,
                     full, weight_policy, chunk * kBf16Chunk,
                     weight_channel + across * T::kMmaOut + box * box_step);
          }
        }
      }
    };
    const int32_t early = first ? min(args.chunks, T::kStages) : 0;
    if (first) {
      if (ElectLane()) {
        for (int32_t i = 0; i < early; ++i) load_weights(i, i);
      }
      __syncwarp();
      WaitForPriorKernels();
    }
    MakeUniform(ring);
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk, ring.Advance()) {
      if (chunk >= early) shared.empty[ring.index].Wait(ring.parity ^ 1);
      if (ElectLane()) {
        if (chunk >= early) load_weights(ring.index, chunk);
        if (has_tokens) {
          LoadX<T>(shared.x[ring.index] + part * kChunkBytes, maps.x, shared.full[ring.index],
                   kTmaEvictNormal, same_tokens, {chunk * kBf16Chunk, x_token + part, head});
        }
      }
      __syncwarp();
    }
  }
}

// The sums of a tile; meanwhile() is called while each of its stages is multiplied.
template <class T, class F>
__device__ __forceinline__ void SumTile(float (&sums)[T::kMmaN / 2], Shared<T>& shared,
                                        RingPosition<T::kStages>& ring, int32_t chunks,
                                        WarpLane thread, const F& meanwhile) {
  const int warpgroup = thread.warp / 4;
  const uint32_t x =
      WgmmaOperand(SharedAddress(shared.x) + warpgroup % T::kDown * 64 * kChunkBytes);
  const uint32_t weights =
      WgmmaOperand(SharedAddress(shared.weights) + warpgroup / T::kDown * T::kMmaN * kChunkBytes);
  constexpr int kXStep = T::kM * kChunkBytes / 16, kWeightStep = T::kN * kChunkBytes / 16;
  int32_t last = 0;
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    shared.full[ring.index].Wait(ring.parity);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kBf16Chunk / 16; ++k) {
      WgmmaBf16<T::kMmaN>::template Add<Major::kK, Major::kK>(
          sums, x + ring.index * kXStep + 2 * k, weights + ring.index * kWeightStep + 2 * k,
          k > 0 || chunk > 0);
    }
    WgmmaCommit();
    if (chunk > 0) {
      WgmmaWait<1>();
      Release<T::kBlocks>(shared.empty[last], thread.lane);
    }
    last = static_cast<int32_t>(ring.index);
    ring.Advance();
    meanwhile();
  }
  WgmmaWait<0>();
  WgmmaHold(sums);
  Release<T::kBlocks>(shared.empty[last], thread.lane);
}

// Tile after tile; BF16 results are stored while the next tile is multiplied.
template <class T, class Find>
__device__ __forceinline__ void MultiplyAll(Shared<T>& shared, const Args& args, WarpLane thread,
                                            const Find& find) {
  RingPosition<T::kStages> ring;
  float sums[T::kMmaN / 2];
  Results<T> results;
  Work work, done;
  int32_t stored = T::kPieces;  // of the tile that is done
  const auto store = [&] {
    if (stored < T::kPieces) StorePiece<T>(stored++, results, shared, args, done, thread);
  };
  while (find(work)) {
    MakeUniform(ring);
    SumTile(sums, shared, ring, args.chunks, thread, store);
    while (stored < T::kPieces) store();
    if (!T::kSilu && args.f32) {
      const Part<T> part(args, work, thread.warp, 0);
      StoreF32<T::kMmaOut>(sums, static_cast<float*>(args.out) + part.at, args.out_stride,
                           part.tokens, part.channels, thread.lane);
      continue;
    }
    Pack<T>(results, sums);
    done = work;
    stored = 0;
  }
  while (stored < T::kPieces) store();
}

// The multiplying warpgroups.
template <class T>
__device__ void MultiplyTiles(Shared<T>& shared, const Args& args, int32_t index, int32_t step,
                              uint32_t rank, int warp) {
  // In this order: what comes next may read early what was there before this kernel.
  WaitForPriorKernels();
  AllowNextKernel();
  const auto find = [&](Work& work) {
    if (!FindWork(shared, args, index, rank, work)) return false;
    if (args.counts == nullptr) work.tokens = min(work.tokens, __ldcg(args.live) - work.token);
    index += step;
    return true;
  };
  const WarpLane thread = {.warp = warp, .lane = static_cast<int>(threadIdx.x % kWarp)};
  MultiplyAll(shared, args, thread, find);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    Kernel(const __grid_constant__ Maps maps, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared<T>& shared = *reinterpret_cast<Shared<T>*>(memory);
  const uint32_t rank = ClusterRank();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&maps.x);
    PrefetchTensorMap(&maps.weights);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].Init(1);
      shared.empty[stage].Init(T::kBlocks * T::kWarps);
    }
    FenceMbarrierInit();
  }
  if (!args.counts_are_there) WaitForPriorKernels();
  FillGroups(shared, args);  // and all threads of the block see the barriers
  ClusterSync();

  const int32_t index = blockIdx.x / T::kBlocks, step = gridDim.x / T::kBlocks;
  const int warp = Uniform(threadIdx.x / 32);
  if (warp >= T::kWarps) {
    if constexpr (T::kWarps > 4) LowerRegisters<T::kLoaderRegisters>();
    if (warp == T::kWarps) Load(shared, args, maps, index, step, rank);
  } else {
    if constexpr (T::kWarps > 4) RaiseRegisters<T::kRegisters>();
    MultiplyTiles(shared, args, index, step, rank, warp);
  }
  // The other block may still write to this one's memory or arrive at its barriers.
  __syncwarp();
  ClusterSync();
}

}  // namespace fathom::bf16_gemm
