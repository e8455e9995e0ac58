// Tiles of the FP8 product: what a block does, keeps in shared memory, and works on next.
#pragma once

#include "cuda/exp2.h"
#include "cuda/mbarrier.h"
#include "products/hopper/fp8_gemm_launch.h"
#include "products/hopper/gemm_tiles.cuh"

namespace fathom::fp8_gemm {

// What all blocks of a cluster need, and each loads a part of, for all. With kTile they need
// nothing alike: each has one chain of the runs of their one tile.
enum class Share { kNone, kX, kWeights, kTile };

// How a block works: kWarpgroupsM x kWarpgroupsN warpgroups, each of kUnitsM x kUnitsN products of
// 64 tokens and kMmaN channels. kSilu: the two units along N are gate and up of the same channels;
// with two warpgroups along N (kHalves) each has one of the two, and each block of a pair half a
// run. kFolds: a block has all chains, one after the other.
template <int kWarpgroupsM_, int kWarpgroupsN_, int kUnitsM_, int kUnitsN_, int kMmaN_,
          int kStages_, Share kShare_ = Share::kNone, int kBlocks_ = 1, bool kSilu_ = false,
          bool kFolds_ = false>
struct Tile {
  static constexpr int kWarpgroupsM = kWarpgroupsM_, kWarpgroupsN = kWarpgroupsN_;
  static constexpr int kUnitsM = kUnitsM_, kUnitsN = kUnitsN_, kMmaN = kMmaN_, kStages = kStages_;
  static constexpr Share kShare = kShare_;
  static constexpr bool kSilu = kSilu_, kHalves = kSilu && kWarpgroupsN == 2;
  static constexpr int kM = 64 * kWarpgroupsM * kUnitsM;     // tokens
  static constexpr int kN = kMmaN * kWarpgroupsN * kUnitsN;  // channels of W
  static constexpr int kOut = kSilu ? kN / 2 : kN;           // channels of the output
  static constexpr int kUnits = kUnitsM * kUnitsN;
  static constexpr int kBlocks = kBlocks_;                                  // of a cluster
  static constexpr int kRingBlocks = kShare == Share::kTile ? 1 : kBlocks;  // that load for others
  static constexpr bool kFolds = kFolds_;
  static constexpr int kXBoxes = kShare == Share::kX ? kBlocks : 1;
  static constexpr int kWeightBoxes = kSilu || kShare == Share::kWeights ? 2 : 1;
  // TMA reads scales from a multiple of 4 tokens on: up to 3 tokens before the tile, in boxes of up
  // to 128 tokens and 4 more.
  static constexpr int kScaleBoxes = kM > 128 ? kM / 128 : 1;
  static constexpr int kScaleTokens = kM / kScaleBoxes + 4;
  static constexpr uint32_t kScaleBytes = kScaleBoxes * kScaleTokens * sizeof(float);
  static constexpr int kScalePitch = (kScaleTokens + 31) / 32 * 32;  // TMA writes to 128 bytes
  static constexpr int kClusterM = kM * (kShare == Share::kWeights ? kBlocks : 1);
  static constexpr int kWarps = 4 * kWarpgroupsM * kWarpgroupsN;  // that multiply
  static constexpr int kThreads = 128 + 32 * kWarps;              // a warpgroup loads
  static constexpr int kLoaderRegisters = 40;
  static constexpr int kMostRegisters = (65536 - 128 * kLoaderRegisters) / (kThreads - 128) / 8 * 8;
  static constexpr int kRegisters = kMostRegisters < 240 ? kMostRegisters : 240;
  // Tiles of weight scales that a unit lies in; parts of its channels that have one scale each.
  static constexpr int kScaleTiles = kMmaN > kRun ? 2 : 1;
  static constexpr int kScaleParts = kMmaN > kRun ? kMmaN / 64 : 1;
  static constexpr int kScalesN = kUnitsN * kScaleTiles;
  // Products of the next run are begun before those of the last are scaled.
  static constexpr bool kTwoProducts = kUnits == 1 && !kFolds && kMmaN <= kRun;
  static_assert(kThreads >= kMaxGroups / 2 && kN % 8 == 0 && kN <= 256);
  static_assert(kMmaN <= kRun || (kMmaN == 192 && kWarpgroupsN * kUnitsN == 1));
  static_assert(!kSilu || kHalves || (kUnitsN == 2 && kMmaN == kRun));
  static_assert(!kHalves || (kM == 64 && kMmaN == kRun / 2 && kShare == Share::kX && kBlocks == 2));
  static_assert((kShare == Share::kNone) == (kBlocks == 1));
  static_assert(kShare != Share::kWeights || (kBlocks == 2 && kN == 256));
  // Room for what blocks of kTile send each other: a warp's part of the sums, of each other block.
  static constexpr int kParts = kWarps * kUnits;
  static constexpr int kPartVectors = kMmaN / 8 * 32;  // of four sums
  static constexpr int kRoomVectors =
      kShare == Share::kTile ? (kParts + kBlocks - 1) / kBlocks * (kBlocks - 1) * kPartVectors : 0;
  static_assert(kShare != Share::kTile || (!kSilu && !kFolds));
  static_assert(!kFolds || (kUnits == 1 && !kSilu));
};

// The greatest magnitudes of a run of kHalves, by warp of its tokens, for each of the four warps
// that have a part of it: two of this block, two of the other. Tiles take turns at two places,
// because the other block may be one ahead.
template <bool kHalves>
struct RunLargest {};
template <>
struct RunLargest<true> {
  float tokens[2][4][4][16];
  Mbarrier full[2][4];
};

// What other blocks of kTile sent: [own part][block, from the one after this][vector][lane].
template <int kVectors>
struct Room {
  float4 vectors[kVectors];
};
template <>
struct Room<0> {};

// One tile of one block.
struct Work {
  int32_t group;
  int32_t token;    // of x and out
  int32_t tokens;   // live from there on; 0 or less: nothing
  int32_t channel;  // of the part
  int32_t part;
  int32_t channels;  // of the part from there on; 0: nothing
  bool beside;       // of blocks that share weights: they have the same tokens, and share x instead
};

template <class T>
struct Shared {
  alignas(1024) uint8_t x[T::kStages][T::kM * kRun];
  uint8_t weights[T::kStages][T::kN * kRun];
  uint8_t staging[T::kWarps][16 * kRun];  // a warp's part of the output
  float x_scales[T::kStages][T::kScaleBoxes][T::kScalePitch];
  Room<T::kRoomVectors> room;
  Mbarrier full[T::kStages], empty[T::kStages];
  Work next[T::kStages];  // the tile after the one whose first run is there; its group -1: none
  RunLargest<T::kHalves> run_largest;
  TokenGroups groups;
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

// Two blocks that share weights have a line of tiles each. Of an odd number of tokens both take the
// last, side by side, and share its x: otherwise one of them would have nothing.
template <class T>
__device__ int32_t ClusterTiles(int32_t tokens, int32_t across) {
  const int32_t down = (tokens + T::kM - 1) / T::kM;
  if (T::kShare != Share::kWeights) return down * across;
  return down / 2 * across + down % 2 * ((across + 1) / 2);
}

// All threads.
template <class T>
__device__ void FillGroups(Shared<T>& shared, const Args& args) {
  FillGroups(
      shared.groups, args.groups,
      [&](int32_t tokens) { return ClusterTiles<T>(tokens, ClusterTilesAcross<T>(args)); },
      [&](int32_t group) {
        return args.counts == nullptr
                   ? args.group_capacity
                   : min(max(__ldcg(args.counts + group), 0), args.group_capacity);
      },
      [&](int32_t group) {
        return args.begins != nullptr ? __ldcg(args.begins + group) : group * args.group_capacity;
      });
}

// The block's tile of the cluster's tile `index`; false once there is none.
template <class T>
__device__ bool FindWork(const Shared<T>& shared, const Args& args, int32_t index, uint32_t rank,
                         Work& work) {
  const int32_t across = ClusterTilesAcross<T>(args);
  TilePlace place;
  if (!FindGroup(shared.groups, args.groups, index, place.group)) return false;
  const int32_t down = (shared.groups.token_count[place.group] + T::kM - 1) / T::kM * T::kM /
                       T::kClusterM;  // tokens of whole clusters
  work.beside = index >= down * across;
  if (work.beside) {
    place.column = T::kBlocks * (index - down * across) + rank;
    place.token = down * T::kClusterM;
  } else {
    PlaceInBands<T::kClusterM>(down, across, index, place);
    if (T::kShare == Share::kX) place.column = T::kBlocks * place.column + rank;
    if (T::kShare == Share::kWeights) place.token += rank * T::kM;
  }
  const bool beyond = place.column >= TilesAcross<T>(args);  // the last cluster may be in part
  if (beyond) place.column = 0;
  work.group = place.group;
  work.token = shared.groups.token_begin[place.group] + place.token;
  work.tokens = shared.groups.token_count[place.group] - place.token;
  work.part = place.column / args.part_tiles;
  work.channel = (place.column - work.part * args.part_tiles) * T::kOut;
  work.channels = beyond ? 0 : args.part_out - work.channel;
  return true;
}

// Where a thread's part of the tile lies.
template <class T>
struct Place {
  __device__ Place()
      : warp(Uniform(threadIdx.x / 32)),
        lane(threadIdx.x % 32),
        warpgroup_m(warp / 4 / T::kWarpgroupsN),
        warpgroup_n(warp / 4 % T::kWarpgroupsN) {}
  // First token and channel of a unit.
  __device__ int UnitToken(int unit) const {
    return (warpgroup_m * T::kUnitsM + unit / T::kUnitsN) * 64;
  }
  __device__ int UnitChannel(int unit) const {
    return (warpgroup_n * T::kUnitsN + unit % T::kUnitsN) * T::kMmaN;
  }
  // The first of the two tokens of a unit whose sums this thread holds; the other is 8 further.
  __device__ int Token(int unit) const { return UnitToken(unit) + warp % 4 * 16 + lane / 4; }
  // Blocks of kTile add up the chains of parts in turn, and store them.
  __device__ int PartOf(int unit) const { return unit * T::kWarps + warp; }
  __device__ bool Owns(int unit) const {
    return T::kShare != Share::kTile ||
           PartOf(unit) % T::kBlocks == static_cast<int>(ClusterRank());
  }
  int warp, lane, warpgroup_m, warpgroup_n;
  int shift = 0;                 // of the tile's first token in the stage's scales
  bool middle_in_first = false;  // of 192 channels the middle 64 have the first 64's scale
  uint32_t ended = 0;            // tiles of kHalves whose end this warp has done
};

template <class T>
using Sums = float[T::kMmaN / 2];

// silu(gate) * up. What is flushed to zero, a power below 2^-126 and 1 / (1 + it) above 2^126, is
// lost in the sum, and less than 2^-119: __expf and __fdividef take care of both, a branch each.
__device__ __forceinline__ float SiluTimes(float gate, float up) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + Exp2(gate * -1.44269504f)));
  return gate * inverse * up;
}

}  // namespace fathom::fp8_gemm
