// What the products of many tokens on Hopper share, BF16 and FP8: tokens in groups (matrices,
// heads, experts) and the walk over their tiles; and a warp's way from sums to memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/mbarrier.h"
#include "cuda/warp.h"
#include "products/hopper/gemm_launch.h"

namespace fathom {

inline constexpr int kStagedBytes = 128;  // of a tile row of staging memory

template <int kStages>
__device__ __forceinline__ void MakeUniform(RingPosition<kStages>& ring) {
  ring.index = Uniform(ring.index);
  ring.parity = Uniform(ring.parity);
}

// This warp has read a stage: all blocks of the cluster may write to it again.
template <int kBlocks>
__device__ __forceinline__ void Release(Mbarrier& empty, int lane) {
  __syncwarp();
  if constexpr (kBlocks == 1) {
    if (lane == 0) empty.Arrive();
  } else {
    if (lane < kBlocks) empty.ArriveAt(lane);
  }
}

// In shared memory.
struct TokenGroups {
  int32_t tile_end[kMaxGroups];  // tiles of a cluster up to and with each group
  int32_t token_begin[kMaxGroups], token_count[kMaxGroups];
  int32_t warp_tiles[kMaxGroups / 2 / 32];
};

// Reads the groups' tokens and sums their tiles, two groups a thread; tiles_of: a cluster's tiles
// of so many tokens. All threads of a block of at least kMaxGroups / 2.
template <class Tiles, class Count, class Begin>
__device__ void FillGroups(TokenGroups& groups, int32_t number, const Tiles& tiles_of,
                           const Count& count_of, const Begin& begin_of) {
  const int t = threadIdx.x;
  int32_t tiles[2] = {}, sum = 0;
  if (t < kMaxGroups / 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t group = 2 * t + i;
      if (group >= number) continue;
      groups.token_count[group] = count_of(group);
      groups.token_begin[group] = begin_of(group);
      tiles[i] = tiles_of(groups.token_count[group]);
    }
    sum = tiles[0] + tiles[1];
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, sum, step);
      if (t % 32 >= step) sum += before;
    }
    if (t % 32 == 31) groups.warp_tiles[t / 32] = sum;
  }
  __syncthreads();
  if (t < kMaxGroups / 2) {
    for (int warp = 0; warp < t / 32; ++warp) sum += groups.warp_tiles[warp];
    groups.tile_end[2 * t] = sum - tiles[1];
    groups.tile_end[2 * t + 1] = sum;
  }
  __syncthreads();
}

// Where a cluster's tile lies.
struct TilePlace {
  int32_t group;
  int32_t token, column;  // first token in the group; tiles of the cluster before it across
};

// The group of the cluster's tile `index`, which becomes the index there; false once there is none.
__device__ __forceinline__ bool FindGroup(const TokenGroups& groups, int32_t number, int32_t& index,
                                          int32_t& group) {
  group = 0;
  if (number > 1) {
    for (int32_t step = kMaxGroups / 2; step > 0; step /= 2) {
      if (groups.tile_end[group + step - 1] <= index) group += step;
    }
  }
  if (index >= groups.tile_end[group]) return false;
  if (group > 0) index -= groups.tile_end[group - 1];
  return true;
}

// Tile `index` of a group with `down` tiles along tokens. Bands of 2048 tokens keep x and W of
// blocks that run together in the L2.
template <int kTileTokens>
__device__ __forceinline__ void PlaceInBands(int32_t down, int32_t across, int32_t index,
                                             TilePlace& place) {
  constexpr int32_t kBand = 2048 / kTileTokens;
  const int32_t band = index / (kBand * across), in_band = index - band * kBand * across;
  const int32_t height = min(kBand, down - band * kBand);
  place.column = in_band / height;
  place.token = (band * kBand + in_band - place.column * height) * kTileTokens;
}

// The place of the cluster's tile `index`; false once there is none.
template <int kTileTokens>
__device__ bool FindTile(const TokenGroups& groups, int32_t number, int32_t across, int32_t index,
                         TilePlace& place) {
  if (!FindGroup(groups, number, index, place.group)) return false;
  const int32_t tokens = groups.token_count[place.group];
  PlaceInBands<kTileTokens>((tokens + kTileTokens - 1) / kTileTokens, across, index, place);
  return true;
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Stages chunks (of 8 numbers) `chunk` and the next of a warp's 16 tokens; y: this thread's pairs
// of the two. Chunk c of tile row r lies at chunk c ^ (r % 8).
__device__ __forceinline__ void StagePacked(uint8_t* staging, int chunk, const uint32_t* y,
                                            int lane) {
  // A lane names a tile row of one of the four 8 x 8 matrices: tokens 0-7 and 8-15 of both chunks.
  const int tile_row = lane % 16, to = (chunk + lane / 16) ^ tile_row % 8;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   SharedAddress(staging) + tile_row * kStagedBytes + to * 16),
               "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3])
               : "memory");
}
// The same of sums.
__device__ __forceinline__ void StageBf16(uint8_t* staging, int chunk, const float* y, int lane) {
  const uint32_t pairs[4] = {PackBf16(y[0], y[1]), PackBf16(y[2], y[3]), PackBf16(y[4], y[5]),
                             PackBf16(y[6], y[7])};
  StagePacked(staging, chunk, pairs, lane);
}

// Sends 16 tokens of kChunks staged chunks of 16 bytes to places `stride` bytes apart; `tokens` and
// `bytes` are there.
template <int kChunks>
__device__ __forceinline__ void StoreStaged(const uint8_t* staging, uint8_t* to, int64_t stride,
                                            int tokens, int bytes, int lane) {
  constexpr int kTokensAtATime = 32 / kChunks;
#pragma unroll
  for (int first = 0; first < 16; first += kTokensAtATime) {
    const int token = first + lane / kChunks, chunk = lane % kChunks;
    const uint4 value =
        *reinterpret_cast<const uint4*>(staging + token * kStagedBytes + (chunk ^ token % 8) * 16);
    if (token < tokens && chunk * 16 < bytes) {
      *reinterpret_cast<uint4*>(to + token * stride + chunk * 16) = value;
    }
  }
}

// A warp's 16 tokens of kChannels sums, of which `tokens` and `channels` are there.
template <int kChannels>
__device__ __forceinline__ void StoreF32(const float* y, float* to, int64_t stride, int tokens,
                                         int channels, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = lane / 4 + 8 * half, column = lane % 4 * 2;
    if (token >= tokens) continue;
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      if (column + 8 * j < channels) {
        *reinterpret_cast<float2*>(to + token * stride + column + 8 * j) =
            make_float2(y[4 * j + 2 * half], y[4 * j + 2 * half + 1]);
      }
    }
  }
}

}  // namespace fathom
