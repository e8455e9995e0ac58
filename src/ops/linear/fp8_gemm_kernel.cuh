// The FP8 block-scaled product on Hopper.
//   formula:       y[r, n] = sum over runs of (sum over the run's 128 k of x[r, k] W[n, k]) *
//   (sx[r,
//                  run] * sw[n / 128, run])
//   data mapping:  persistent blocks walk tiles; one thread feeds a ring of shared-memory stages (a
//                  run of x and of W each) by TMA, warpgroups multiply 64 rows by kMmaN channels
//   bytes, FLOPs:  in x (rows + out) + 2 x rows x out bytes; 2 x rows x out x in FLOPs
//   accumulator:   the tensor core's within a run, fp32 registers across runs
//   expected time: docs/design/fp8_gemm.md
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "cuda/e4m3.h"
#include "cuda/fence.h"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "cuda/wgmma_fp8.h"
#include "ops/linear/fp8_gemm_launch.h"

namespace fathom::fp8_gemm {

// What all blocks of a cluster need, and each loads a part of, for all.
enum class Share { kNone, kX, kWeights };

// How a block works: kWarpgroupsM x kWarpgroupsN warpgroups, each of kUnitsM x kUnitsN products of
// 64 rows and kMmaN channels. kSilu: the two units along N are gate and up of the same channels.
template <int kWarpgroupsM_, int kWarpgroupsN_, int kUnitsM_, int kUnitsN_, int kMmaN_,
          int kStages_, Share kShare_ = Share::kNone, int kBlocks_ = 1, bool kSilu_ = false,
          int kPerMultiprocessor_ = 1>
struct Tile {
  static constexpr int kWarpgroupsM = kWarpgroupsM_, kWarpgroupsN = kWarpgroupsN_;
  static constexpr int kUnitsM = kUnitsM_, kUnitsN = kUnitsN_, kMmaN = kMmaN_, kStages = kStages_;
  static constexpr Share kShare = kShare_;
  static constexpr bool kSilu = kSilu_;
  static constexpr int kPerMultiprocessor = kPerMultiprocessor_;  // blocks at a time
  static constexpr int kM = 64 * kWarpgroupsM * kUnitsM;          // rows
  static constexpr int kN = kMmaN * kWarpgroupsN * kUnitsN;       // rows of W
  static constexpr int kOut = kSilu ? kN / 2 : kN;                // channels of the output
  static constexpr int kUnits = kUnitsM * kUnitsN;
  static constexpr int kBlocks = kBlocks_;  // of a cluster
  static constexpr int kXBoxes = kShare == Share::kX ? kBlocks : 1;
  static constexpr int kWeightBoxes = kSilu ? 2 : 1;
  // TMA reads scales from a multiple of 4 rows on: up to 3 rows before the tile, in boxes of up to
  // 128 rows and 4 more.
  static constexpr int kScaleBoxes = kM > 128 ? kM / 128 : 1;
  static constexpr int kScaleRows = kM / kScaleBoxes + 4;
  static constexpr int kScalePitch = (kScaleRows + 31) / 32 * 32;  // TMA writes to 128 bytes
  static constexpr int kClusterM = kM * (kShare == Share::kWeights ? kBlocks : 1);
  static constexpr int kWarps = 4 * kWarpgroupsM * kWarpgroupsN;  // that multiply
  static constexpr int kThreads = 128 + 32 * kWarps;              // a warpgroup loads
  static constexpr int kLoaderRegisters = 40;
  static constexpr int kMostRegisters =
      (65536 / kPerMultiprocessor - 128 * kLoaderRegisters) / (kThreads - 128) / 8 * 8;
  static constexpr int kRegisters = kMostRegisters < 240 ? kMostRegisters : 240;
  // Products of the next run are begun before those of the last are scaled.
  static constexpr bool kTwoProducts = kUnits == 1;
  static_assert(kThreads >= kMaxGroups && kN % 8 == 0 && kN <= 256);
  static_assert(!kSilu || (kUnitsN == 2 && kWarpgroupsN == 1 && kMmaN == kRun));
  static_assert((kShare == Share::kNone) == (kBlocks == 1));
  static_assert(kShare != Share::kWeights || kWeightBoxes == kBlocks);
};

template <class T>
struct Shared {
  alignas(1024) uint8_t x[T::kStages][T::kM * kRun];
  uint8_t weights[T::kStages][T::kN * kRun];
  uint8_t staging[T::kWarps][16 * kRun];  // a warp's part of the output
  float x_scales[T::kStages][T::kScaleBoxes][T::kScalePitch];
  Mbarrier full[T::kStages], empty[T::kStages];
  int32_t tile_end[kMaxGroups];  // tiles of the cluster up to and with each matrix
  int32_t row_begin[kMaxGroups], row_count[kMaxGroups];
  int32_t warp_tiles[kMaxGroups / 32];
};

// One tile of one block.
struct Work {
  int32_t group;
  int32_t row;      // of x and out
  int32_t rows;     // live from there on; 0 or less: nothing
  int32_t channel;  // of the part
  int32_t part;
  int32_t channels;  // of the part from there on; 0: nothing
};

// Gate and up share a tile; other parts have their own.
template <class T>
__device__ int32_t TilesAcross(const Args& args) {
  return T::kSilu ? args.part_tiles : args.parts * args.part_tiles;
}
template <class T>
__device__ int32_t ClusterTilesAcross(const Args& args) {
  const int32_t tiles = TilesAcross<T>(args);
  return T::kShare == Share::kX ? (tiles + T::kBlocks - 1) / T::kBlocks : tiles;
}

// Reads the groups' rows and sums their tiles. All threads.
template <class T>
__device__ void FillGroups(Shared<T>& shared, const Args& args) {
  const int t = threadIdx.x;
  int32_t tiles = 0;
  if (t < kMaxGroups) {
    if (t < args.groups) {
      const int32_t count = min(max(args.counts[t], 0), args.group_capacity);
      shared.row_count[t] = count;
      shared.row_begin[t] = args.begins != nullptr ? args.begins[t] : t * args.group_capacity;
      tiles = (count + T::kClusterM - 1) / T::kClusterM * ClusterTilesAcross<T>(args);
    }
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(0xffffffff, tiles, step);
      if (t % 32 >= step) tiles += before;
    }
    if (t % 32 == 31) shared.warp_tiles[t / 32] = tiles;
  }
  __syncthreads();
  if (t < kMaxGroups) {
    for (int warp = 0; warp < t / 32; ++warp) tiles += shared.warp_tiles[warp];
    shared.tile_end[t] = tiles;
  }
  __syncthreads();
}

// The block's tile of the cluster's tile `index`; false once there is none. Bands of rows as high
// as 16 blocks of 128 keep x and W of blocks that run together in the L2.
template <class T>
__device__ bool FindWork(const Shared<T>& shared, const Args& args, int32_t index, uint32_t rank,
                         Work& work) {
  int32_t group = 0;
  if (args.groups > 1) {
    for (int32_t step = kMaxGroups / 2; step > 0; step /= 2) {
      if (shared.tile_end[group + step - 1] <= index) group += step;
    }
  }
  if (index >= shared.tile_end[group]) return false;
  if (group > 0) index -= shared.tile_end[group - 1];
  constexpr int32_t kBand = 2048 / T::kClusterM;
  const int32_t count = shared.row_count[group];
  const int32_t down = (count + T::kClusterM - 1) / T::kClusterM;
  const int32_t across = ClusterTilesAcross<T>(args);
  const int32_t band = index / (kBand * across), in_band = index - band * kBand * across;
  const int32_t height = min(kBand, down - band * kBand);
  int32_t tile_n = in_band / height;
  int32_t row = (band * kBand + in_band - tile_n * height) * T::kClusterM;
  if (T::kShare == Share::kX) tile_n = T::kBlocks * tile_n + rank;
  if (T::kShare == Share::kWeights) row += rank * T::kM;
  const bool beyond = tile_n >= TilesAcross<T>(args);  // the last cluster may be in part
  if (beyond) tile_n = 0;
  work.group = group;
  work.row = shared.row_begin[group] + row;
  work.rows = count - row;
  work.part = tile_n / args.part_tiles;
  work.channel = (tile_n - work.part * args.part_tiles) * T::kOut;
  work.channels = beyond ? 0 : args.part_out - work.channel;
  return true;
}

// A value that is the same in all lanes, in a way that the compiler knows.
template <class V>
__device__ __forceinline__ V Uniform(V value) {
  return __shfl_sync(0xffffffff, value, 0);
}

// The loading warp: every stage of every tile, in the order in which they are multiplied.
template <class T>
__device__ void Load(Shared<T>& shared, const Args& args, const CUtensorMap& x_map,
                     const CUtensorMap& x_scale_map, const CUtensorMap& weight_map, int32_t index,
                     int32_t step, uint32_t rank) {
  constexpr int kBoxRows = T::kN / T::kWeightBoxes;
  constexpr uint16_t kAllBlocks = (1 << T::kBlocks) - 1;
  const uint64_t policy = EvictNormal();
  const uint32_t bytes = (T::kXBoxes * args.x_box_rows + T::kN) * kRun +
                         T::kScaleBoxes * T::kScaleRows * static_cast<uint32_t>(sizeof(float));
  RingPosition<T::kStages> ring;
  Work work;
  for (; FindWork(shared, args, index, rank, work); index += step) {
    const int32_t x_row = Uniform(work.row);
    const int32_t weight_row =
        Uniform((work.group * args.parts + work.part) * args.part_out + work.channel);
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    for (int32_t run = 0; run < args.runs; ++run, ring.Advance()) {
      Mbarrier& full = shared.full[ring.index];
      shared.empty[ring.index].Wait(ring.parity ^ 1);
      if (ElectLane()) {
        full.ArriveExpect(bytes);
        uint8_t* x = shared.x[ring.index];
        if constexpr (T::kShare == Share::kX) {
          const int part = rank * args.x_box_rows;
          TmaLoadMulticast2(x + part * kRun, &x_map, full, policy, kAllBlocks, run * kRun,
                            x_row + part);
        } else {
          TmaLoad2(x, &x_map, full, policy, run * kRun, x_row);
        }
#pragma unroll
        for (int box = 0; box < T::kWeightBoxes; ++box) {
          uint8_t* to = shared.weights[ring.index] + box * kBoxRows * kRun;
          const int32_t row = weight_row + box * args.part_out;
          if constexpr (T::kShare == Share::kWeights) {
            if (box != rank) continue;
            TmaLoadMulticast2(to, &weight_map, full, policy, kAllBlocks, run * kRun, row);
          } else {
            TmaLoad2(to, &weight_map, full, policy, run * kRun, row);
          }
        }
#pragma unroll
        for (int box = 0; box < T::kScaleBoxes; ++box) {
          TmaLoad2(shared.x_scales[ring.index][box], &x_scale_map, full, policy,
                   (x_row & ~3) + 128 * box, run);
        }
      }
      __syncwarp();
    }
  }
}

// The scale of a weight tile for each run: a lane holds every 32nd, and the next already.
class WeightScales {
 public:
  __device__ void Start(const float* scales, int32_t runs) {
    scales_ = scales;
    runs_ = runs;
    next_ = Read(threadIdx.x % 32);
  }
  // REQUIRES: runs come in order, from 0; whole warps.
  __device__ float Of(int32_t run) {
    if (run % 32 == 0) {
      current_ = next_;
      next_ = Read(run + 32 + threadIdx.x % 32);
    }
    return __shfl_sync(0xffffffff, current_, run % 32);
  }

 private:
  __device__ float Read(int32_t run) const { return run < runs_ ? __ldg(scales_ + run) : 0.0f; }
  const float* scales_;
  int32_t runs_;
  float current_, next_;
};

// The same for short tiles, whose next scales would be waited for at once: all are held.
class HeldWeightScales {
 public:
  __device__ void Start(const float* scales, int32_t runs) {
#pragma unroll
    for (int i = 0; i < kMostRuns / 32; ++i) {
      const int32_t run = 32 * i + threadIdx.x % 32;
      held_[i] = run < runs ? __ldg(scales + run) : 0.0f;
    }
  }
  // Whole warps, the same run.
  __device__ float Of(int32_t run) const {
    float scale = held_[0];
#pragma unroll
    for (int i = 1; i < kMostRuns / 32; ++i) {
      if (run >= 32 * i) scale = held_[i];
    }
    return __shfl_sync(0xffffffff, scale, run % 32);
  }

 private:
  float held_[kMostRuns / 32];
};

template <class T>
using WeightScalesOf = std::conditional_t<T::kTwoProducts, HeldWeightScales, WeightScales>;

// Where a thread's part of the tile lies.
template <class T>
struct Place {
  __device__ Place()
      : warp(Uniform(threadIdx.x / 32)),
        lane(threadIdx.x % 32),
        warpgroup_m(warp / 4 / T::kWarpgroupsN),
        warpgroup_n(warp / 4 % T::kWarpgroupsN) {}
  // First row and channel of a unit.
  __device__ int UnitRow(int unit) const {
    return (warpgroup_m * T::kUnitsM + unit / T::kUnitsN) * 64;
  }
  __device__ int UnitChannel(int unit) const {
    return (warpgroup_n * T::kUnitsN + unit % T::kUnitsN) * T::kMmaN;
  }
  // The first of the two rows of a unit whose sums this thread holds; the other is 8 further.
  __device__ int Row(int unit) const { return UnitRow(unit) + warp % 4 * 16 + lane / 4; }
  int warp, lane, warpgroup_m, warpgroup_n;
  int shift = 0;  // of the tile's first row in the stage's scales
};

template <class T>
using Sums = float[T::kMmaN / 2];

template <class T>
__device__ __forceinline__ void Multiply(Sums<T>& product, const Shared<T>& shared, int stage,
                                         const Place<T>& place, int unit) {
  const uint64_t x = WgmmaOperand(SharedAddress(shared.x[stage]) + place.UnitRow(unit) * kRun);
  const uint64_t weights =
      WgmmaOperand(SharedAddress(shared.weights[stage]) + place.UnitChannel(unit) * kRun);
  WgmmaHold(product);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kRun / 32; ++k) WgmmaE4M3(product, x + 2 * k, weights + 2 * k, k > 0);
  WgmmaCommit();
}

// The scales of this thread's two rows of a unit, times the weights'.
template <class T>
__device__ __forceinline__ float2 ReadScales(const Shared<T>& shared, int stage,
                                             const Place<T>& place, int unit, float weight_scale) {
  const int box = T::kScaleBoxes == 1 ? 0 : place.UnitRow(unit) / 128;
  const float* scales = shared.x_scales[stage][box] + place.Row(unit) - 128 * box + place.shift;
  return {scales[0] * weight_scale, scales[8] * weight_scale};
}

template <class T>
__device__ __forceinline__ void AddScaled(Sums<T>& sum, const Sums<T>& product, float2 scale) {
#pragma unroll
  for (int i = 0; i < T::kMmaN / 2; ++i) {
    sum[i] = fmaf(product[i], i / 2 % 2 == 0 ? scale.x : scale.y, sum[i]);
  }
}

// This warp has read the stage: both blocks of a cluster may write to it again.
template <class T>
__device__ __forceinline__ void Release(Shared<T>& shared, int stage, int lane) {
  __syncwarp();
  if constexpr (T::kBlocks == 1) {
    if (lane == 0) shared.empty[stage].Arrive();
  } else {
    // Nothing was written: no need for Mbarrier::ArriveAt's fence of the whole GPU.
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
}

// The sums of a tile, one product at a time, units in turn: the other warpgroup's products run
// while this one's are scaled.
template <class T>
__device__ __forceinline__ void SumUnits(Sums<T> (&sums)[T::kUnits], Shared<T>& shared,
                                         RingPosition<T::kStages>& ring, const Place<T>& place,
                                         WeightScalesOf<T> (&weight_scales)[T::kUnitsN],
                                         int32_t runs) {
  Sums<T> product;
  for (int32_t run = 0; run < runs; ++run, ring.Advance()) {
    float weight_scale[T::kUnitsN];
#pragma unroll
    for (int n = 0; n < T::kUnitsN; ++n) weight_scale[n] = weight_scales[n].Of(run);
    shared.full[ring.index].Wait(ring.parity);
    float2 scale[T::kUnits];
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit) {
      scale[unit] = ReadScales(shared, ring.index, place, unit, weight_scale[unit % T::kUnitsN]);
    }
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit) {
      Multiply<T>(product, shared, ring.index, place, unit);
      WgmmaWait<0>();
      WgmmaHold(product);
      if (unit == T::kUnits - 1) Release(shared, ring.index, place.lane);
      AddScaled<T>(sums[unit], product, scale[unit]);
    }
  }
}

// The sums of a tile whose next product runs while the last is scaled.
template <class T>
__device__ __forceinline__ void SumOverlapped(Sums<T>& sum, Shared<T>& shared,
                                              RingPosition<T::kStages>& ring, const Place<T>& place,
                                              WeightScalesOf<T>& weight_scales, int32_t runs) {
  RingPosition<T::kStages> next = ring;  // `ring` is the stage whose product is scaled next
  // Scales are read before wgmma keeps the shared memory busy.
  const auto begin = [&](Sums<T>& product, float2& scale, int32_t run) {
    const float weight_scale = weight_scales.Of(run);
    shared.full[next.index].Wait(next.parity);
    scale = ReadScales(shared, next.index, place, 0, weight_scale);
    Multiply<T>(product, shared, next.index, place, 0);
    next.Advance();
  };
  const auto finish = [&](Sums<T>& product, float2 scale) {
    WgmmaHold(product);
    Release(shared, ring.index, place.lane);
    ring.Advance();
    AddScaled<T>(sum, product, scale);
  };
  Sums<T> even, odd;
  float2 even_scale, odd_scale;
  begin(even, even_scale, 0);
  int32_t run = 0;
  for (; run + 2 < runs; run += 2) {
    begin(odd, odd_scale, run + 1);
    WgmmaWait<1>();
    finish(even, even_scale);
    begin(even, even_scale, run + 2);
    WgmmaWait<1>();
    finish(odd, odd_scale);
  }
  if (run + 2 == runs) {
    begin(odd, odd_scale, run + 1);
    WgmmaWait<1>();
    finish(even, even_scale);
    WgmmaWait<0>();
    finish(odd, odd_scale);
  } else {
    WgmmaWait<0>();
    finish(even, even_scale);
  }
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Sends 16 rows of `kChunks` chunks of 16 bytes, staged by this warp (chunk c of row r at chunk c ^
// (r % 8)), to rows of `stride` bytes.
template <int kChunks>
__device__ __forceinline__ void StoreStaged(const uint8_t* staging, uint8_t* to, int64_t stride,
                                            int rows, int bytes, int lane) {
  constexpr int kRowsAtATime = 32 / kChunks;
#pragma unroll
  for (int first = 0; first < 16; first += kRowsAtATime) {
    const int row = first + lane / kChunks, chunk = lane % kChunks;
    const int staged = chunk ^ row % 8;
    const uint4 value = *reinterpret_cast<const uint4*>(staging + row * kRun + staged * 16);
    if (row < rows && chunk * 16 < bytes) {
      *reinterpret_cast<uint4*>(to + row * stride + chunk * 16) = value;
    }
  }
}

template <class T>
__device__ __forceinline__ void StoreBf16(const Sums<T>& sum, uint8_t* staging, const Args& args,
                                          const Work& work, const Place<T>& place, int unit) {
  constexpr int kChannels = T::kMmaN < 64 ? T::kMmaN : 64;  // staged at a time
  const int row = place.UnitRow(unit) + place.warp % 4 * 16;
#pragma unroll
  for (int first = 0; first < T::kMmaN; first += kChannels) {
    // A lane names a row of one of the four 8 x 8 matrices: rows 0-7 and 8-15 of two chunks.
    const int staged_row = place.lane % 16;
#pragma unroll
    for (int chunk = 0; chunk < kChannels / 8; chunk += 2) {
      const float* d = sum + (first / 8 + chunk) * 4;
      const int to = (chunk + place.lane / 16) ^ staged_row % 8;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       SharedAddress(staging) + staged_row * kRun + to * 16),
                   "r"(PackBf16(d[0], d[1])), "r"(PackBf16(d[2], d[3])), "r"(PackBf16(d[4], d[5])),
                   "r"(PackBf16(d[6], d[7]))
                   : "memory");
    }
    __syncwarp();
    const int channel = place.UnitChannel(unit) + first;
    uint8_t* out =
        static_cast<uint8_t*>(args.out) +
        ((work.row + row) * args.out_stride + work.part * args.part_out + work.channel + channel) *
            2;
    StoreStaged<kChannels / 8>(staging, out, args.out_stride * 2, work.rows - row,
                               (work.channels - channel) * 2, place.lane);
    __syncwarp();
  }
}

template <class T>
__device__ __forceinline__ void StoreF32(const Sums<T>& sum, const Args& args, const Work& work,
                                         const Place<T>& place, int unit) {
  const int channel = place.UnitChannel(unit) + place.lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = place.Row(unit) + 8 * half;
    if (row >= work.rows) continue;
    float* out = static_cast<float*>(args.out) + (work.row + row) * args.out_stride +
                 work.part * args.part_out + work.channel + channel;
#pragma unroll
    for (int j = 0; j < T::kMmaN / 8; ++j) {
      if (channel + 8 * j < work.channels) {
        *reinterpret_cast<float2*>(out + 8 * j) =
            make_float2(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
      }
    }
  }
}

// silu(gate) * up of 64 rows and 128 channels, quantised: a row's run is spread over four lanes.
template <class T>
__device__ __forceinline__ void StoreSilu(Sums<T>& gate, const Sums<T>& up, uint8_t* staging,
                                          const Args& args, const Work& work,
                                          const Place<T>& place) {
  const int first_channel = place.lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kRun / 8; ++j) {
#pragma unroll
      for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) {
        gate[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
        if (8 * j + first_channel < work.channels) largest = LargerMagnitude(largest, gate[i]);
      }
    }
    largest = LargerMagnitude(largest, __shfl_xor_sync(0xffffffff, largest, 1));
    largest = LargerMagnitude(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    const float scale = RunScale(largest, args.ue8m0);
    const int row = place.Row(0) + 8 * half;
    if (place.lane % 4 == 0 && row < work.rows && work.channels > 0) {
      args.out_scales[work.channel / kRun * args.out_scale_pitch + work.row + row] = scale;
    }
    const int staged_row = place.lane / 4 + 8 * half;
#pragma unroll
    for (int j = 0; j < kRun / 8; ++j) {
      const float* h = gate + 4 * j + 2 * half;
      *reinterpret_cast<uint16_t*>(staging + staged_row * kRun + (j / 2 ^ staged_row % 8) * 16 +
                                   j % 2 * 8 + first_channel) =
          static_cast<uint16_t>(QuantizeTwo(h[0], h[1], scale));
    }
  }
  __syncwarp();
  const int row = place.UnitRow(0) + place.warp % 4 * 16;
  uint8_t* out =
      static_cast<uint8_t*>(args.out) + (work.row + row) * args.out_stride + work.channel;
  StoreStaged<kRun / 16>(staging, out, args.out_stride, work.rows - row, work.channels, place.lane);
  __syncwarp();
}

template <class T>
__device__ void Store(Sums<T> (&sums)[T::kUnits], Shared<T>& shared, const Args& args,
                      const Work& work, const Place<T>& place) {
  uint8_t* staging = shared.staging[place.warp];
  if constexpr (T::kSilu) {
    StoreSilu<T>(sums[0], sums[1], staging, args, work, place);
  } else {
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit) {
      if (args.f32) {
        StoreF32<T>(sums[unit], args, work, place, unit);
      } else {
        StoreBf16<T>(sums[unit], staging, args, work, place, unit);
      }
    }
  }
}

// The multiplying warpgroups.
template <class T>
__device__ void MultiplyTiles(Shared<T>& shared, const Args& args, int32_t index, int32_t step,
                              uint32_t rank) {
  Place<T> place;
  RingPosition<T::kStages> ring;
  Work work;
  for (; FindWork(shared, args, index, rank, work); index += step) {
    WeightScalesOf<T> weight_scales[T::kUnitsN];
#pragma unroll
    for (int n = 0; n < T::kUnitsN; ++n) {
      // Gate and up are parts; other units lie in one scale tile each.
      const int part = T::kSilu ? n : work.part;
      const int channel = work.channel + (T::kSilu ? 0 : place.UnitChannel(n));
      const int tile = min(channel, args.part_out - 1) / kRun;
      weight_scales[n].Start(
          args.weight_scales +
              (static_cast<int64_t>(work.group * args.parts + part) * args.scale_rows + tile) *
                  args.runs,
          args.runs);
    }
    Sums<T> sums[T::kUnits] = {};
    place.shift = work.row & 3;
    ring.index = Uniform(ring.index);
    ring.parity = Uniform(ring.parity);
    if constexpr (T::kTwoProducts) {
      SumOverlapped<T>(sums[0], shared, ring, place, weight_scales[0], args.runs);
    } else {
      SumUnits<T>(sums, shared, ring, place, weight_scales, args.runs);
    }
    Store<T>(sums, shared, args, work, place);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kPerMultiprocessor)
    Kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap x_scale_map,
           const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared<T>& shared = *reinterpret_cast<Shared<T>*>(memory);
  const uint32_t rank = T::kBlocks == 1 ? 0 : ClusterRank();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&x_map);
    PrefetchTensorMap(&x_scale_map);
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
  if constexpr (T::kBlocks > 1) ClusterSync();

  const int32_t index = blockIdx.x / T::kBlocks, step = gridDim.x / T::kBlocks;
  const int warp = Uniform(threadIdx.x / 32);
  if (warp >= T::kWarps) {
    LowerRegisters<T::kLoaderRegisters>();
    if (warp == T::kWarps) {
      Load(shared, args, x_map, x_scale_map, weight_map, index, step, rank);
    }
  } else {
    RaiseRegisters<T::kRegisters>();
    MultiplyTiles(shared, args, index, step, rank);
  }
  // The other block may still write to this one's memory or arrive at its barriers.
  if constexpr (T::kBlocks > 1) {
    __syncwarp();
    ClusterSync();
  }
}

}  // namespace fathom::fp8_gemm
