// FP8 products of few quantised tokens: a block's shared memory, and the warp that fills it.
#pragma once

#include <algorithm>

#include "cuda/fence.h"
#include "cuda/mbarrier.h"
#include "cuda/mma.cuh"
#include "cuda/tma.h"
#include "cuda/warp.h"
#include "products/hopper/fp8_few_codes.h"
#include "products/hopper/fp8_gemm_launch.h"
#include "products/hopper/gemm_launch.h"

namespace fathom {
namespace fp8_few_codes {

using fp8_gemm::kMostRuns;
using fp8_gemm::kRun;
using kernels::CommitCopies, kernels::CopyAsync, kernels::WaitForCopies;

constexpr int kTokens = kFp8FewCodesTokens;
constexpr int kMultipliers = 128, kThreads = kMultipliers + 32;
constexpr int kTileRows = 64, kTileBytes = kTileRows * kRun;
constexpr int kXBytes = kTokens * kRun;  // of a run
constexpr int kMostStages = 24, kSharedBytes = 227 * 1024;
constexpr int kMostDeep = 4;   // runs of a stage
constexpr int kWarpRows = 16;  // tile rows of a warp; a block's channels are a multiple of it
// Weights' scale tiles that the channels of a block and part touch, at most.
constexpr int kScaleTiles = 3;

struct Args {
  const float *x_scales, *weight_scales;
  const int32_t* live;
  void* y;
  int64_t y_stride, x_scale_pitch;
  int32_t tokens, runs, part_out, scale_groups;
  int32_t channels;  // of a block and part: a multiple of kWarpRows
  int32_t stages;
};

struct Shared {
  Mbarrier full[kMostStages], empty[kMostStages];
};

// kTiles: of 64 tile rows each, at least what a block has. A stage is a run of the block's tile
// rows and of x; of one tile four runs, whose products are under way together, as those of several
// tiles are.
template <bool kSilu, int kTiles>
struct Shape {
  static constexpr int kParts = kSilu ? 2 : 1;
  static constexpr int kDeep = kTiles == 1 ? kMostDeep : 1;  // runs of a stage
  static constexpr int kXOfStage = kDeep * kXBytes;
  __host__ __device__ static int32_t Rows(const Args& a) { return kParts * a.channels; }
  __host__ __device__ static int32_t StageBytes(const Args& a) {
    return kDeep * Rows(a) * kRun + kXOfStage;
  }
  static size_t SharedBytes(const Args& a, int64_t stages) {
    const size_t others =
        a.runs * (kTokens + kParts * kScaleTiles) * sizeof(float) + sizeof(Shared);
    // Tile rows that a block does not have are multiplied, too, and their sums left.
    const size_t beyond = (kTiles * kTileRows - Rows(a)) * kRun;
    return stages * StageBytes(a) + std::max(others, beyond);
  }
};

// What lies where in dynamic shared memory.
template <class S>
struct Memory {
  __device__ Memory(uint8_t* memory, const Args& a)
      : stages(memory),
        x_scales(reinterpret_cast<float*>(stages + a.stages * S::StageBytes(a))),
        weight_scales(x_scales + a.runs * kTokens),
        shared(reinterpret_cast<Shared*>(weight_scales + S::kParts * kScaleTiles * a.runs)) {}
  uint8_t* stages;                  // each: x, then the parts' weights, run by run
  float *x_scales, *weight_scales;  // [runs][tokens]; [parts][groups][runs]
  Shared* shared;
};

// The loading warp: every run, in order.
template <class S>
class Loader {
 public:
  __device__ Loader(const Memory<S>& memory, const Args& a, const CUtensorMap* weight_map,
                    const CUtensorMap* x_map, int32_t channel)
      : memory_(memory),
        a_(a),
        weight_map_(weight_map),
        x_map_(x_map),
        channel_(Uniform(channel)) {}

  __device__ void Run() {
    for (int32_t stage = 0; stage < a_.stages; ++stage) LoadWeights(stage, stage * S::kDeep);
    WaitForPriorKernels();
    for (int32_t stage = 0; stage < a_.stages; ++stage) LoadX(stage, stage * S::kDeep);
    Ring ring{a_.stages};
    for (int32_t run = a_.stages * S::kDeep; run < a_.runs; run += S::kDeep, ring.Advance()) {
      ring.index = Uniform(ring.index);
      ring.parity = Uniform(ring.parity);
      memory_.shared->empty[ring.index].Wait(ring.parity);
      LoadWeights(ring.index, run);
      LoadX(ring.index, run);
    }
  }

 private:
  __device__ __forceinline__ uint8_t* Stage(int32_t stage) const {
    return memory_.stages + stage * S::StageBytes(a_);
  }
  __device__ __forceinline__ void LoadWeights(int32_t stage, int32_t run) const {
    if (ElectLane()) {
      Mbarrier& full = memory_.shared->full[stage];
      full.ArriveExpect(S::StageBytes(a_));
#pragma unroll
      for (int i = 0; i < S::kDeep * S::kParts; ++i) {
        TmaLoad2(Stage(stage) + S::kXOfStage + i * a_.channels * kRun, weight_map_, full,
                 kTmaEvictFirst, (run + i / S::kParts) * kRun,
                 channel_ + i % S::kParts * a_.part_out);
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void LoadX(int32_t stage, int32_t run) const {
    if (ElectLane()) {
      TmaLoad3(Stage(stage), x_map_, memory_.shared->full[stage], kTmaEvictNormal, {0, 0, run});
    }
    __syncwarp();
  }

  const Memory<S>& memory_;
  const Args& a_;
  const CUtensorMap *weight_map_, *x_map_;
  const int32_t channel_;
};

// Scales, without waiting for them: first those of the block's weights, of all groups that its
// channels from `channel` on touch, and then, once they are there, those of x. Those who multiply.
template <class S>
__device__ __forceinline__ void LoadWeightScales(const Memory<S>& memory, const Args& a,
                                                 int32_t channel) {
  const auto at = static_cast<int32_t>(threadIdx.x * 4);
  static_assert(kMostRuns <= 4 * kMultipliers);
#pragma unroll
  for (int i = 0; i < S::kParts * kScaleTiles; ++i) {
    const int32_t group = channel / kRun + i % kScaleTiles;
    if (at >= a.runs || group >= a.scale_groups) continue;
    const int64_t row = i / kScaleTiles * a.scale_groups + group;
    CopyAsync(SharedAddress(memory.weight_scales + i * a.runs + at),
              a.weight_scales + row * a.runs + at, true);
  }
}
template <class S>
__device__ __forceinline__ void LoadXScales(const Memory<S>& memory, const Args& a) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < 2 * a.runs; i += kMultipliers) {
    CopyAsync(SharedAddress(memory.x_scales + 4 * i),
              a.x_scales + i / 2 * a.x_scale_pitch + i % 2 * 4, true);
  }
}

}  // namespace fp8_few_codes
}  // namespace fathom
