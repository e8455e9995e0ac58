// BF16 products of many rows on Hopper.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  persistent blocks in pairs walk tiles; one thread feeds a ring of shared-memory
//                  stages (64 channels of x and of W each) by TMA, warpgroups multiply 64 rows by
//                  kN
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

// The loading warp: every stage of every tile, in the order in which they are multiplied.
template <class T>
__device__ void Load(Shared<T>& shared, const Args& args, const CUtensorMap& x_map,
                     const CUtensorMap& weight_map, int32_t index, int32_t step, uint32_t rank) {
  constexpr int kBoxRows = T::kN / T::kWeightBoxes;
  constexpr uint16_t kBothBlocks = 3;
  const uint32_t x_bytes = T::kBlocks * args.x_box_rows * kChunkBytes;
  constexpr uint32_t kWeightBytes = T::kN * kChunkBytes;
  const uint64_t policy = EvictNormal();
  const int32_t half = rank * args.x_box_rows;  // of x: what this block loads
  const int32_t matrix_rows = args.channels * (T::kSilu ? 2 : 1);
  RingPosition<T::kStages> ring;
  Work work;
  for (; FindWork(shared, args, index, rank, work); index += step) {
    const int32_t x_row = Uniform(work.row);
    const int32_t head = Uniform(args.counts == nullptr ? work.group : 0);
    const int32_t weight_row = Uniform(work.group * matrix_rows + work.channel);
    // A pair's second block may have no channels: what it multiplies is not stored.
    const bool load_weights = Uniform(work.channels) > 0;
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    for (int32_t chain = 0; chain < kBf16Chains; ++chain) {
      for (int32_t chunk = chain; chunk < args.chunks; chunk += kBf16Chains, ring.Advance()) {
        Mbarrier& full = shared.full[ring.index];
        shared.empty[ring.index].Wait(ring.parity ^ 1);
        if (ElectLane()) {
          full.ArriveExpect(load_weights ? x_bytes + kWeightBytes : x_bytes);
          const int32_t k = chunk * kBf16Chunk;
          TmaLoadMulticast3(shared.x[ring.index] + half * kChunkBytes, &x_map, full, policy,
                            kBothBlocks, k, x_row + half, head);
#pragma unroll
          for (int box = 0; box < T::kWeightBoxes; ++box) {
            if (!load_weights) break;
            TmaLoad2(shared.weights[ring.index] + box * kBoxRows * kChunkBytes, &weight_map, full,
                     policy, k, weight_row + box * args.channels);
          }
        }
        __syncwarp();
      }
    }
  }
}

// This warp has read the stage: both blocks of the cluster may write to it again. Nothing was
// written: no need for Mbarrier::ArriveAt's fence of the whole GPU.
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

// The sums of one chain of chunks; meanwhile(i) is done while the i-th is multiplied.
template <class T, class F>
__device__ __forceinline__ void SumChain(float (&sums)[T::kN / 2], Shared<T>& shared,
                                         RingPosition<T::kStages>& ring, int32_t chunks,
                                         int warpgroup, int lane, const F& meanwhile) {
#pragma unroll
  for (float& sum : sums) sum = 0;
  WgmmaHold(sums);
  uint32_t last = 0;
  for (int32_t i = 0; i < chunks; ++i, ring.Advance()) {
    const uint64_t x =
        WgmmaOperand(SharedAddress(shared.x[ring.index]) + warpgroup * 64 * kChunkBytes);
    const uint64_t weights = WgmmaOperand(SharedAddress(shared.weights[ring.index]));
    shared.full[ring.index].Wait(ring.parity);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kBf16Chunk / 16; ++k) {
      WgmmaBf16<T::kN>::template Add<Major::kK, Major::kK>(sums, x + 2 * k, weights + 2 * k, true);
    }
    WgmmaCommit();
    if (i > 0) {
      WgmmaWait<1>();
      Release(shared, last, lane);
    }
    last = ring.index;
    meanwhile(i);
  }
  WgmmaWait<0>();
  WgmmaHold(sums);
  Release(shared, last, lane);
}

// The multiplying warpgroups. A tile's results are stored while the next one's first chain is
// multiplied.
template <class T>
__device__ void MultiplyTiles(Shared<T>& shared, const Args& args, int32_t index, int32_t step,
                              uint32_t rank, int warp) {
  const int lane = threadIdx.x % 32, warpgroup = warp / 4;
  const int32_t chains = min(kBf16Chains, args.chunks);
  RingPosition<T::kStages> ring;
  float total[T::kN / 2], sums[T::kN / 2];
  Work work, done;
  int32_t stored = T::kPieces;  // of the tile that is done
  const auto store = [&](int32_t piece) {
    StorePiece<T>(piece, total, shared, args, done, warp, lane);
  };
  for (; FindWork(shared, args, index, rank, work); index += step) {
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    const auto sum_chain = [&](int32_t chain, const auto& meanwhile) {
      SumChain(sums, shared, ring, (args.chunks - chain + kBf16Chains - 1) / kBf16Chains, warpgroup,
               lane, meanwhile);
    };
    sum_chain(0, [&](int32_t) {
      if (stored < T::kPieces) store(stored++);
    });
    while (stored < T::kPieces) store(stored++);
#pragma unroll
    for (int i = 0; i < T::kN / 2; ++i) total[i] = sums[i];
#pragma unroll 1
    for (int32_t chain = 1; chain < chains; ++chain) {
      sum_chain(chain, [](int32_t) {});
#pragma unroll
      for (int i = 0; i < T::kN / 2; ++i) total[i] += sums[i];
    }
    done = work;
    stored = 0;
  }
  while (stored < T::kPieces) store(stored++);
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
  WaitForPriorKernels();
  FillGroups(shared, args);  // and all threads of the block see the barriers
  AllowNextKernel();
  ClusterSync();

  const int32_t index = blockIdx.x / T::kBlocks, step = gridDim.x / T::kBlocks;
  const int warp = Uniform(threadIdx.x / 32);
  if (warp >= T::kWarps) {
    if constexpr (T::kWarpgroups > 1) LowerRegisters<T::kLoaderRegisters>();
    if (warp == T::kWarps) Load(shared, args, x_map, weight_map, index, step, rank);
  } else {
    if constexpr (T::kWarpgroups > 1) RaiseRegisters<T::kRegisters>();
    MultiplyTiles(shared, args, index, step, rank, warp);
  }
  // The other block may still write to this one's memory or arrive at its barriers.
  __syncwarp();
  ClusterSync();
}

}  // namespace fathom::bf16_gemm
