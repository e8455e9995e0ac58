// Tiles of the BF16 product of many tokens: what a block keeps in shared memory, and works on next.
#pragma once

#include "cuda/mbarrier.h"
#include "products/hopper/bf16_gemm_launch.h"
#include "products/hopper/gemm_tiles.cuh"

namespace fathom::bf16_gemm {

// A block's tile: kDown x kAcross warpgroups, each of 64 tokens by kMmaN channels of W. kSilu: half
// of them are gate, the other half up, of the same channels. A cluster is kPairTokens x
// kPairChannels blocks: those of the same tokens load a part of x each, for all of them, and those
// of the same channels a part of W.
template <int kDown_, int kAcross_, int kMmaN_, int kStages_, bool kSilu_, int kPairTokens_ = 1,
          int kPairChannels_ = 2>
struct Tile {
  static constexpr int kDown = kDown_, kAcross = kAcross_, kMmaN = kMmaN_, kStages = kStages_;
  static constexpr bool kSilu = kSilu_;
  static constexpr int kPairTokens = kPairTokens_, kPairChannels = kPairChannels_;
  static constexpr int kM = 64 * kDown, kN = kMmaN * kAcross;
  static constexpr int kMmaOut = kSilu ? kMmaN / 2 : kMmaN;    // channels of a warpgroup
  static constexpr int kOut = kMmaOut * kAcross;               // of the output
  static constexpr int kBlocks = kPairTokens * kPairChannels;  // of a cluster
  static constexpr int kClusterOut = kOut * kPairChannels, kClusterM = kM * kPairTokens;
  static constexpr int kWeightBoxes = kSilu || kPairTokens == 2 ? 2 : 1;  // of a warpgroup
  static constexpr int kBoxChannels = kMmaN / kWeightBoxes;
  static constexpr int kStaged = kMmaOut % 64 == 0 ? 64 : kMmaOut % 32 == 0 ? 32 : 16;
  static constexpr int kPieces = kMmaOut / kStaged;              // in which a warp stores its part
  static constexpr int kWarps = 4 * kDown * kAcross;             // that multiply
  static constexpr int kThreads = 128 + 32 * kWarps;             // a warpgroup loads
  static constexpr int kLoaderRegisters = 24, kRegisters = 240;  // with two that multiply
  static_assert(kThreads >= kMaxGroups / 2 && kN % 16 == 0 && kN <= 256 && kDown * kAcross <= 2);
  static_assert(kPairTokens == 1 || kAcross == 1);
};

template <class T>
struct Shared {
  alignas(1024) uint8_t x[T::kStages][T::kM * kChunkBytes];
  uint8_t weights[T::kStages][T::kN * kChunkBytes];
  uint8_t staging[T::kWarps][16 * kChunkBytes];  // a warp's part of the output
  Mbarrier full[T::kStages], empty[T::kStages];
  TokenGroups groups;
};

// One tile of one block.
struct Work {
  int32_t group;
  int32_t token;     // of x and out
  int32_t tokens;    // live from there on; 0 or less: nothing
  int32_t channel;   // of the output
  int32_t channels;  // from there on; 0 or less: nothing
};

// Which thread of those that multiply.
struct WarpLane {
  int warp, lane;
};

// All threads.
template <class T>
__device__ void FillGroups(Shared<T>& shared, const Args& args) {
  FillGroups(
      shared.groups, args.groups,
      [&](int32_t tokens) { return (tokens + T::kClusterM - 1) / T::kClusterM * args.across; },
      [&](int32_t group) {  // the live tokens of dense products are asked for later
        return args.counts == nullptr ? args.capacity
                                      : min(max(args.counts[group], 0), args.capacity);
      },
      [&](int32_t group) { return args.begins != nullptr ? args.begins[group] : 0; });
}

// The block's tile of the cluster's tile `index`; false once there is none.
template <class T>
__device__ bool FindWork(const Shared<T>& shared, const Args& args, int32_t index, uint32_t rank,
                         Work& work) {
  TilePlace place;
  if (!FindTile<T::kClusterM>(shared.groups, args.groups, args.across, index, place)) {
    return false;
  }
  work.group = place.group;
  const int32_t token = place.token + rank / T::kPairChannels * T::kM;
  work.token = shared.groups.token_begin[place.group] + token;
  work.tokens = shared.groups.token_count[place.group] - token;
  work.channel = place.column * T::kClusterOut + rank % T::kPairChannels * T::kOut;
  work.channels = args.channels - work.channel;
  return true;
}

}  // namespace fathom::bf16_gemm
