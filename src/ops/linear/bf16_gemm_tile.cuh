// Tiles of the BF16 product of many rows: what a block keeps in shared memory, and works on next.
#pragma once

#include "cuda/mbarrier.h"
#include "ops/linear/bf16_gemm_launch.h"

namespace fathom::bf16_gemm {

// A block's tile: kWarpgroups of 64 rows each, by kN rows of W. kSilu: half of them are gate, the
// other half up, of the same channels. The two blocks of a cluster take neighbouring channels of
// the same rows, of which each loads half for both.
template <int kWarpgroups_, int kN_, int kStages_, bool kSilu_>
struct Tile {
  static constexpr int kWarpgroups = kWarpgroups_, kN = kN_, kStages = kStages_;
  static constexpr bool kSilu = kSilu_;
  static constexpr int kM = 64 * kWarpgroups;
  static constexpr int kOut = kSilu ? kN / 2 : kN;  // channels of the output
  static constexpr int kBlocks = 2;                 // of a cluster
  static constexpr int kClusterOut = kOut * kBlocks;
  static constexpr int kWeightBoxes = kSilu ? 2 : 1;
  static constexpr int kStaged = kOut % 64 == 0 && !kSilu ? 64 : kOut < 32 ? kOut : 32;
  static constexpr int kPieces = kOut / kStaged;                 // in which a warp stores its part
  static constexpr int kWarps = 4 * kWarpgroups;                 // that multiply
  static constexpr int kThreads = 128 + 32 * kWarps;             // a warpgroup loads
  static constexpr int kLoaderRegisters = 24, kRegisters = 240;  // with two that multiply
  static_assert(kThreads >= kMaxGroups && kN % 16 == 0 && kN <= 256 && kWarpgroups <= 2);
};

template <class T>
struct Shared {
  alignas(1024) uint8_t x[T::kStages][T::kM * kChunkBytes];
  uint8_t weights[T::kStages][T::kN * kChunkBytes];
  uint8_t staging[T::kWarps][16 * kChunkBytes];  // a warp's part of the output
  Mbarrier full[T::kStages], empty[T::kStages];
  int32_t tile_end[kMaxGroups];  // tiles of a cluster up to and with each matrix
  int32_t row_begin[kMaxGroups], row_count[kMaxGroups];
  int32_t warp_tiles[kMaxGroups / 32];
};

// One tile of one block.
struct Work {
  int32_t group;
  int32_t row;       // of x and out
  int32_t rows;      // live from there on; 0 or less: nothing
  int32_t channel;   // of the output
  int32_t channels;  // from there on; 0 or less: nothing
};

// Reads the groups' rows and sums their tiles. All threads.
template <class T>
__device__ void FillGroups(Shared<T>& shared, const Args& args) {
  const int t = threadIdx.x;
  const int32_t across = (args.channels + T::kClusterOut - 1) / T::kClusterOut;
  int32_t tiles = 0;
  if (t < kMaxGroups) {
    if (t < args.groups) {
      const int32_t count = args.counts != nullptr ? args.counts[t] : *args.live;
      shared.row_count[t] = min(max(count, 0), args.capacity);
      shared.row_begin[t] = args.begins != nullptr ? args.begins[t] : 0;
      tiles = (shared.row_count[t] + T::kM - 1) / T::kM * across;
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

// The block's tile of the cluster's tile `index`; false once there is none. Bands of 2048 rows keep
// x and W of blocks that run together in the L2.
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
  constexpr int32_t kBand = 2048 / T::kM;
  const int32_t count = shared.row_count[group];
  const int32_t down = (count + T::kM - 1) / T::kM;
  const int32_t across = (args.channels + T::kClusterOut - 1) / T::kClusterOut;
  const int32_t band = index / (kBand * across), in_band = index - band * kBand * across;
  const int32_t height = min(kBand, down - band * kBand);
  const int32_t column = in_band / height;
  const int32_t row = (band * kBand + in_band - column * height) * T::kM;
  work.channel = column * T::kClusterOut + rank * T::kOut;
  work.group = group;
  work.row = shared.row_begin[group] + row;
  work.rows = count - row;
  work.channels = args.channels - work.channel;
  return true;
}

// A value that is the same in all lanes, in a way that the compiler knows.
template <class V>
__device__ __forceinline__ V Uniform(V value) {
  return __shfl_sync(0xffffffff, value, 0);
}

}  // namespace fathom::bf16_gemm
