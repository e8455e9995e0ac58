// Tiles of the BF16 product of many rows: what a block keeps in shared memory, and works on next.
#pragma once

#include "cuda/mbarrier.h"
#include "ops/linear/bf16_gemm_launch.h"
#include "ops/linear/gemm_tiles.cuh"

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
  static_assert(kThreads >= kMaxGroups / 2 && kN % 16 == 0 && kN <= 256 && kWarpgroups <= 2);
};

template <class T>
struct Shared {
  alignas(1024) uint8_t x[T::kStages][T::kM * kChunkBytes];
  uint8_t weights[T::kStages][T::kN * kChunkBytes];
  uint8_t staging[T::kWarps][16 * kChunkBytes];  // a warp's part of the output
  Mbarrier full[T::kStages], empty[T::kStages];
  RowGroups groups;
};

// One tile of one block.
struct Work {
  int32_t group;
  int32_t row;       // of x and out
  int32_t rows;      // live from there on; 0 or less: nothing
  int32_t channel;   // of the output
  int32_t channels;  // from there on; 0 or less: nothing
};

template <class T>
__device__ int32_t ClusterTilesAcross(const Args& args) {
  return (args.channels + T::kClusterOut - 1) / T::kClusterOut;
}

// All threads.
template <class T>
__device__ void FillGroups(Shared<T>& shared, const Args& args) {
  FillGroups(
      shared.groups, args.groups, T::kM, ClusterTilesAcross<T>(args),
      [&](int32_t group) {
        const int32_t count = args.counts != nullptr ? args.counts[group] : *args.live;
        return min(max(count, 0), args.capacity);
      },
      [&](int32_t group) { return args.begins != nullptr ? args.begins[group] : 0; });
}

// The block's tile of the cluster's tile `index`; false once there is none.
template <class T>
__device__ bool FindWork(const Shared<T>& shared, const Args& args, int32_t index, uint32_t rank,
                         Work& work) {
  TilePlace place;
  if (!FindTile<T::kM>(shared.groups, args.groups, ClusterTilesAcross<T>(args), index, place)) {
    return false;
  }
  work.group = place.group;
  work.row = shared.groups.row_begin[place.group] + place.row;
  work.rows = shared.groups.row_count[place.group] - place.row;
  work.channel = place.column * T::kClusterOut + rank * T::kOut;
  work.channels = args.channels - work.channel;
  return true;
}

}  // namespace fathom::bf16_gemm
