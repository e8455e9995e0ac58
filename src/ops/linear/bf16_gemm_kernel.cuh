// BF16 products of many rows on Hopper.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  persistent blocks in pairs walk tiles; one thread feeds a ring of shared-memory
//                  stages (64 channels of x and of W each) by TMA, warpgroups multiply 64 rows by
//                  kMmaN
//   bytes, FLOPs:  in x (rows + out) + rows x out numbers; 2 x rows x out x in FLOPs
//   accumulator:   fp32 in the tensor core, in kBf16Chains chains of every fourth chunk, added in
//                  order: the sums of bf16_product_cuda.cu
//   expected time: docs/design/bf16_gemm.md
#pragma once

#include "cuda/fence.h"
#include "cuda/tma.h"
#include "cuda/wgmma_bf16.h"
#include "ops/linear/bf16_gemm_store.cuh"
#include "ops/linear/bf16_gemm_tile.cuh"

namespace fathom::bf16_gemm {

// The chunk that a row's sums take after `chunk`.
template <class T>
__device__ __forceinline__ int32_t NextChunk(const Args& args, int32_t chunk) {
  if (T::kTogether) return chunk + 1;
  chunk += kBf16Chains;
  return chunk < args.chunks ? chunk : chunk % kBf16Chains + 1;
}

// The loading warp: every stage of every tile, in the order in which they are multiplied. Weights
// are asked for before the kernels before have ended, as far as the stages reach; x is not.
template <class T>
__device__ void Load(Shared<T>& shared, const Args& args, const CUtensorMap& x_map,
                     const CUtensorMap& weight_map, int32_t index, int32_t step, uint32_t rank) {
  constexpr uint16_t kBothBlocks = 3;
  const uint32_t x_bytes = T::kBlocks * args.x_box_rows * kChunkBytes;
  constexpr uint32_t kWeightBytes = T::kN * kChunkBytes;
  const uint64_t policy = EvictNormal(), weight_policy = args.read_once ? EvictFirst() : policy;
  const int32_t half = rank * args.x_box_rows;  // of x: what this block loads
  const int32_t matrix_rows = args.channels * T::kWeightBoxes;
  RingPosition<T::kStages> ring;
  Work work;
  bool first = true;
  for (; FindWork(shared, args, index, rank, work); index += step, first = false) {
    const int32_t x_row = Uniform(work.row);
    const int32_t head = Uniform(args.counts == nullptr ? work.group : 0);
    const int32_t weight_row = Uniform(work.group * matrix_rows + work.channel);
    // A pair's second block may have no channels: what it multiplies is not stored.
    const bool has_channels = Uniform(work.channels) > 0;
    const auto load_weights = [&](uint32_t stage, int32_t chunk) {
      Mbarrier& full = shared.full[stage];
      full.ArriveExpect(has_channels ? x_bytes + kWeightBytes : x_bytes);
      if (!has_channels) return;
#pragma unroll
      for (int across = 0; across < T::kAcross; ++across) {
#pragma unroll
        for (int box = 0; box < T::kWeightBoxes; ++box) {
          TmaLoad2(shared.weights[stage] + (across * T::kMmaN + box * T::kMmaOut) * kChunkBytes,
                   &weight_map, full, weight_policy, chunk * kBf16Chunk,
                   weight_row + across * T::kMmaOut + box * args.channels);
        }
      }
    };
    const int32_t early = first ? min(args.chunks, T::kStages) : 0;
    if (first) {
      if (ElectLane()) {
        for (int32_t i = 0, chunk = 0; i < early; ++i, chunk = NextChunk<T>(args, chunk)) {
          load_weights(i, chunk);
        }
      }
      __syncwarp();
      if (!args.x_is_there) WaitForPriorKernels();
    }
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    for (int32_t i = 0, chunk = 0; i < args.chunks;
         ++i, chunk = NextChunk<T>(args, chunk), ring.Advance()) {
      if (i >= early) shared.empty[ring.index].Wait(ring.parity ^ 1);
      if (ElectLane()) {
        if (i >= early) load_weights(ring.index, chunk);
        TmaLoadMulticast3(shared.x[ring.index] + half * kChunkBytes, &x_map,
                          shared.full[ring.index], policy, kBothBlocks, chunk * kBf16Chunk,
                          x_row + half, head);
      }
      __syncwarp();
    }
  }
}

// This warp has read the stage: both blocks of the cluster may write to it again. Nothing was
// written: no need to release, which fences the whole GPU.
template <class T>
__device__ __forceinline__ void Release(Shared<T>& shared, int stage, int lane) {
  __syncwarp();
  if (lane < T::kBlocks) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(
            shared.empty[stage].address()),
        "r"(lane)
        : "memory");
  }
}

// Begins the products of a stage of x and weights, and ends those of the stage before: `last`, or
// none if negative.
template <class T>
__device__ __forceinline__ void AddStage(float (&sums)[T::kMmaN / 2], Shared<T>& shared,
                                         RingPosition<T::kStages>& ring, int32_t& last,
                                         int warpgroup, int lane) {
  const uint64_t x =
      WgmmaOperand(SharedAddress(shared.x[ring.index]) + warpgroup % T::kDown * 64 * kChunkBytes);
  const uint64_t weights = WgmmaOperand(SharedAddress(shared.weights[ring.index]) +
                                        warpgroup / T::kDown * T::kMmaN * kChunkBytes);
  shared.full[ring.index].Wait(ring.parity);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kBf16Chunk / 16; ++k) {
    WgmmaBf16<T::kMmaN>::template Add<Major::kK, Major::kK>(sums, x + 2 * k, weights + 2 * k, true);
  }
  WgmmaCommit();
  if (last >= 0) {
    WgmmaWait<1>();
    Release(shared, last, lane);
  }
  last = static_cast<int32_t>(ring.index);
  ring.Advance();
}

template <int kCount>
__device__ __forceinline__ void SetZero(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums) sum = 0;
  WgmmaHold(sums);
}

// The sums of one chain of chunks; meanwhile(i) is done while the i-th is multiplied.
template <class T, class F>
__device__ __forceinline__ void SumChain(float (&sums)[T::kMmaN / 2], Shared<T>& shared,
                                         RingPosition<T::kStages>& ring, int32_t chunks,
                                         int warpgroup, int lane, const F& meanwhile) {
  SetZero(sums);
  int32_t last = -1;
  for (int32_t i = 0; i < chunks; ++i) {
    AddStage<T>(sums, shared, ring, last, warpgroup, lane);
    meanwhile(i);
  }
  WgmmaWait<0>();
  WgmmaHold(sums);
  Release(shared, last, lane);
}

// The sums of all chains, chunk by chunk.
template <class T>
__device__ __forceinline__ void SumTogether(float (&sums)[kBf16Chains][T::kMmaN / 2],
                                            Shared<T>& shared, RingPosition<T::kStages>& ring,
                                            int32_t chunks, int warpgroup, int lane) {
#pragma unroll
  for (auto& chain : sums) SetZero(chain);
  int32_t last = -1, chunk = 0;
  for (; chunk + kBf16Chains <= chunks; chunk += kBf16Chains) {
#pragma unroll
    for (auto& chain : sums) AddStage<T>(chain, shared, ring, last, warpgroup, lane);
  }
#pragma unroll
  for (int i = 0; i < kBf16Chains - 1; ++i) {
    if (chunk + i < chunks) AddStage<T>(sums[i], shared, ring, last, warpgroup, lane);
  }
  WgmmaWait<0>();
#pragma unroll
  for (auto& chain : sums) WgmmaHold(chain);
  Release(shared, last, lane);
#pragma unroll
  for (int i = 1; i < kBf16Chains; ++i) {
#pragma unroll
    for (int j = 0; j < T::kMmaN / 2; ++j) sums[0][j] += sums[i][j];
  }
}

// Tiles whose chains follow each other: results are stored while the next one's first chain is
// multiplied.
template <class T, class Find>
__device__ __forceinline__ void MultiplyByChains(Shared<T>& shared, const Args& args, int warp,
                                                 int lane, const Find& find) {
  const int32_t chains = min(kBf16Chains, args.chunks);
  RingPosition<T::kStages> ring;
  float total[T::kMmaN / 2], sums[T::kMmaN / 2];
  Work work, done;
  int32_t stored = T::kPieces;  // of the tile that is done
  const auto store = [&](int32_t piece) {
    StorePiece<T>(piece, total, shared, args, done, warp, lane);
  };
  while (find(work)) {
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    const auto sum_chain = [&](int32_t chain, const auto& meanwhile) {
      SumChain(sums, shared, ring, (args.chunks - chain + kBf16Chains - 1) / kBf16Chains, warp / 4,
               lane, meanwhile);
    };
    sum_chain(0, [&](int32_t) {
      if (stored < T::kPieces) store(stored++);
    });
    while (stored < T::kPieces) store(stored++);
#pragma unroll
    for (int i = 0; i < T::kMmaN / 2; ++i) total[i] = sums[i];
#pragma unroll 1
    for (int32_t chain = 1; chain < chains; ++chain) {
      sum_chain(chain, [](int32_t) {});
#pragma unroll
      for (int i = 0; i < T::kMmaN / 2; ++i) total[i] += sums[i];
    }
    done = work;
    stored = 0;
  }
  while (stored < T::kPieces) store(stored++);
}

// Tiles whose chains are summed at once.
template <class T, class Find>
__device__ __forceinline__ void MultiplyTogether(Shared<T>& shared, const Args& args, int warp,
                                                 int lane, const Find& find) {
  RingPosition<T::kStages> ring;
  float sums[kBf16Chains][T::kMmaN / 2];
  Work work;
  while (find(work)) {
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    SumTogether<T>(sums, shared, ring, args.chunks, warp / 4, lane);
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece) {
      StorePiece<T>(piece, sums[0], shared, args, work, warp, lane);
    }
  }
}

// The multiplying warpgroups.
template <class T>
__device__ void MultiplyTiles(Shared<T>& shared, const Args& args, int32_t index, int32_t step,
                              uint32_t rank, int warp) {
  // In this order: what comes next may read early what was there before this kernel.
  if (!args.x_is_there) WaitForPriorKernels();
  AllowNextKernel();
  const auto find = [&](Work& work) {
    if (!FindWork(shared, args, index, rank, work)) return false;
    if (args.counts == nullptr) work.rows = min(work.rows, __ldcg(args.live) - work.row);
    index += step;
    return true;
  };
  const int lane = threadIdx.x % 32;
  if constexpr (T::kTogether) {
    MultiplyTogether(shared, args, warp, lane, find);
  } else {
    MultiplyByChains(shared, args, warp, lane, find);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    Kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared<T>& shared = *reinterpret_cast<Shared<T>*>(memory);
  const uint32_t rank = ClusterRank();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&x_map);
    PrefetchTensorMap(&weight_map);
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
    if (warp == T::kWarps) Load(shared, args, x_map, weight_map, index, step, rank);
  } else {
    if constexpr (T::kWarps > 4) RaiseRegisters<T::kRegisters>();
    MultiplyTiles(shared, args, index, step, rank, warp);
  }
  if (args.x_is_there) WaitForPriorKernels();  // who waits for this kernel waits for the last too
  // The other block may still write to this one's memory or arrive at its barriers.
  __syncwarp();
  ClusterSync();
}

}  // namespace fathom::bf16_gemm
