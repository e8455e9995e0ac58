// The FP8 block-scaled product on Hopper.
//   formula:       y[r, n] = sum over runs of (sum over the run's 128 k of x[r, k] W[n, k]) *
//                  (sx[r, run] * sw[n / 128, run]), of some matrices in chains (Fp8Chains)
//   data mapping:  persistent blocks walk tiles; one thread feeds a ring of shared-memory stages (a
//                  run of x and of W each) by TMA, warpgroups multiply 64 tokens by kMmaN channels
//   bytes, FLOPs:  in x (tokens + out) + 2 x tokens x out bytes; 2 x tokens x out x in FLOPs
//   accumulator:   the tensor core's within a run, fp32 registers across runs
//   builds on:     scaling in fp32 registers after every 128 channels: the DeepSeek-V3 report,
//                  section 3.3, and DeepGEMM; a loading warp ahead of warpgroups that share a tile,
//                  as CUTLASS's persistent cooperative kernels for Hopper
//   expected time: docs/design/fp8-gemm.md
#pragma once

#include "cuda/fence.h"
#include "cuda/tma.h"
#include "products/hopper/fp8_gemm_chains.cuh"
#include "products/hopper/fp8_gemm_store.cuh"
#include "products/hopper/fp8_gemm_sum.cuh"
#include "products/hopper/fp8_gemm_tile.cuh"

namespace fathom::fp8_gemm {

// Of all matrices, one below the other: where the tile begins.
__device__ __forceinline__ int32_t WeightChannel(const Args& args, const Work& work) {
  return (work.group * args.parts + work.part) * args.part_out + work.channel;
}

// The runs that a block of this rank multiplies.
template <class T>
__device__ __forceinline__ Fp8Runs RunsOfBlock(const Args& args, uint32_t rank) {
  if (T::kShare != Share::kTile) return {0, args.runs};
  return Fp8RunsOfChain(args.runs, static_cast<int32_t>(rank), T::kBlocks);
}

// Asks for what does not wait for the kernels before, and then waits for them.
template <class F>
__device__ __forceinline__ void LoadEarly(const Fp8Runs& runs, const F& load) {
  if (ElectLane()) {
    for (int32_t i = 0; i < runs.count; ++i) load(i, runs.first + i);
  }
  __syncwarp();
  WaitForPriorKernels();
}

// The loading warp: every stage of every tile, in the order in which they are multiplied. Weights
// are asked for before the kernels before have ended, as far as the stages reach; x is not.
template <class T>
__device__ void Load(Shared<T>& shared, const Args& args, const Maps& maps, int32_t index,
                     int32_t step, uint32_t rank) {
  constexpr int kBoxChannels = T::kN / T::kWeightBoxes;
  constexpr uint16_t kAllBlocks = (1 << T::kBlocks) - 1;
  const Fp8Runs runs = RunsOfBlock<T>(args, rank);
  const uint64_t weight_policy = args.read_once ? kTmaEvictFirst : kTmaEvictNormal;
  const uint32_t bytes = (T::kXBoxes * args.x_box_tokens + T::kN) * kRun + T::kScaleBytes;
  RingPosition<T::kStages> ring;
  Work work, next;
  bool first = true, more = FindWork(shared, args, index, rank, next);
  // The tile after `work`: those who multiply ask for its scales a tile earlier.
  const auto find_next = [&] {
    more = FindWork(shared, args, index += step, rank, next);
    if (!more) next.group = -1;
  };
  while (more) {
    work = next;
    if (!first) find_next();
    const int32_t x_token = Uniform(work.token);
    const int32_t weight_channel = Uniform(WeightChannel(args, work));
    const auto load_weights = [&](uint32_t stage, int32_t run) {
      Mbarrier& full = shared.full[stage];
      full.ArriveExpect(bytes);
#pragma unroll
      for (int box = 0; box < T::kWeightBoxes; ++box) {
        uint8_t* to = shared.weights[stage] + box * kBoxChannels * kRun;
        const int32_t channel = weight_channel + box * (T::kSilu ? args.part_out : kBoxChannels);
        if (T::kShare == Share::kWeights && !work.beside) {
          if (box != rank) continue;
          TmaLoadMulticast2(to, &maps.weights, full, weight_policy, kAllBlocks,
                            {run * kRun, channel});
        } else {
          TmaLoad2(to, &maps.weights, full, weight_policy, run * kRun, channel);
        }
      }
    };
    const Fp8Runs early = {runs.first, first ? min(runs.count, T::kStages) : 0};
    if (first) LoadEarly(early, load_weights);
    MakeUniform(ring);
    for (int32_t run = runs.first; run < runs.end(); ++run, ring.Advance()) {
      Mbarrier& full = shared.full[ring.index];
      if (run >= early.end()) shared.empty[ring.index].Wait(ring.parity ^ 1);
      if (ElectLane()) {
        if (run == runs.first) shared.next[ring.index] = next;
        if (run >= early.end()) load_weights(ring.index, run);
        uint8_t* x = shared.x[ring.index];
        if constexpr (T::kShare == Share::kX) {
          const int part = rank * args.x_box_tokens;
          TmaLoadMulticast2(x + part * kRun, &maps.x, full, kTmaEvictNormal, kAllBlocks,
                            {run * kRun, x_token + part});
        } else if (T::kShare == Share::kWeights && work.beside) {
          if (rank == 0) {
            TmaLoadMulticast2(x, &maps.x, full, kTmaEvictNormal, kAllBlocks, {run * kRun, x_token});
          }
        } else {
          TmaLoad2(x, &maps.x, full, kTmaEvictNormal, run * kRun, x_token);
        }
#pragma unroll
        for (int box = 0; box < T::kScaleBoxes; ++box) {
          TmaLoad2(shared.x_scales[ring.index][box], &maps.x_scales, full, kTmaEvictNormal,
                   (x_token & ~3) + 128 * box, run);
        }
      }
      __syncwarp();
    }
    if (first) find_next();  // of the first tile, those who multiply search themselves
    first = false;
  }
}

// The multiplying warpgroups.
template <class T>
__device__ void MultiplyTiles(Shared<T>& shared, const Args& args, int32_t index, int32_t step,
                              uint32_t rank) {
  const Fp8Runs runs = RunsOfBlock<T>(args, rank);
  Place<T> place;
  RingPosition<T::kStages> ring;
  Work work, next;
  int32_t live = 0;
  // In this order: what comes next may read early what was there before this kernel.
  const auto wait = [&] {
    WaitForPriorKernels();
    AllowNextKernel();
    if (args.live != nullptr) live = __ldcg(args.live);  // it comes while products are on their way
  };
  // A tile's scales are asked for while the tile before is multiplied.
  using Scales = WeightScalesOf<T>[T::kScalesN];
  const auto start = [&](Scales& scales, const Work& of) {
#pragma unroll
    for (int i = 0; i < T::kScalesN; ++i) {
      const int n = i / T::kScaleTiles;
      // Gate and up are parts; other units lie in the scale tiles of their first and last channel.
      const int part = T::kHalves ? place.warpgroup_n : T::kSilu ? n : of.part;
      const int channel =
          of.channel + (T::kSilu ? 0 : place.UnitChannel(n)) + i % T::kScaleTiles * (T::kMmaN - 1);
      const int tile = min(channel, args.part_out - 1) / kRun;
      scales[i].Start(
          args.weight_scales +
              (static_cast<int64_t>(of.group * args.parts + part) * args.scale_groups + tile) *
                  args.runs +
              runs.first,
          runs.count);
    }
  };
  Scales next_scales;
  bool more = FindWork(shared, args, index, rank, next), first = true;
  if (more) start(next_scales, next);
  while (more) {
    work = next;
    Scales weight_scales;
#pragma unroll
    for (int i = 0; i < T::kScalesN; ++i) weight_scales[i] = next_scales[i];
    MakeUniform(ring);
    if (first) {
      more = FindWork(shared, args, index + step, rank, next);
    } else {
      shared.full[ring.index].Wait(ring.parity);
      next = shared.next[ring.index];
      more = next.group >= 0;
    }
    if (more) start(next_scales, next);
    if (first) wait();
    first = false;
    Sums<T> sums[T::kUnits] = {};
    place.shift = work.token & 3;
    place.middle_in_first = work.channel % kRun == 0;
    if constexpr (T::kTwoProducts) {
      SumOverlapped<T>(sums[0], shared, ring, place, weight_scales[0], runs.count);
    } else if (place.UnitToken(0) >= work.tokens || work.channels <= 0) {
      SkipRuns(shared, ring, place, runs.count);
    } else if constexpr (T::kFolds) {
      SumAndFold<T>(sums, shared, ring, place, weight_scales, args);
    } else {
      SumUnits<T>(sums, shared, ring, place, weight_scales, RunsOfAChain{runs.count});
    }
    if (args.live != nullptr) work.tokens = min(work.tokens, live - work.token);
    if constexpr (T::kShare == Share::kTile) SumChains<T>(sums, shared, work, place, rank);
    Store<T>(sums, shared, args, work, place);
  }
  if (first) wait();  // a block may have no tile
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    Kernel(const __grid_constant__ Maps maps, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared<T>& shared = *reinterpret_cast<Shared<T>*>(memory);
  const uint32_t rank = T::kBlocks == 1 ? 0 : ClusterRank();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&maps.x);
    PrefetchTensorMap(&maps.x_scales);
    PrefetchTensorMap(&maps.weights);
    for (int stage = 0; stage < T::kStages; ++stage) {
      shared.full[stage].Init(1);
      shared.empty[stage].Init(T::kRingBlocks * T::kWarps);
    }
    if constexpr (T::kHalves) {
      for (auto& turn : shared.run_largest.full) {
        for (Mbarrier& full : turn) full.Init(1);
      }
    }
    FenceMbarrierInit();
  }
  if (!args.counts_are_there) WaitForPriorKernels();
  FillGroups(shared, args);  // and all threads of the block see the barriers
  if constexpr (T::kRingBlocks > 1) ClusterSync();
  if constexpr (T::kShare == Share::kTile) ClusterArrive();

  const int32_t index = blockIdx.x / T::kBlocks, step = gridDim.x / T::kBlocks;
  const int warp = Uniform(threadIdx.x / 32);
  if (warp >= T::kWarps) {
    LowerRegisters<T::kLoaderRegisters>();
    if (warp == T::kWarps) {
      Load(shared, args, maps, index, step, rank);
    }
    if constexpr (T::kShare == Share::kTile) {  // where those who multiply meet
      __syncwarp();
      ClusterWait();
      ClusterSync();
    }
  } else {
    RaiseRegisters<T::kRegisters>();
    MultiplyTiles(shared, args, index, step, rank);
  }
  // The other block may still write to this one's memory or arrive at its barriers.
  if constexpr (T::kBlocks > 1 && T::kShare != Share::kTile) {
    __syncwarp();
    ClusterSync();
  }
}

}  // namespace fathom::fp8_gemm
