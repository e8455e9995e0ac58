// What the products of many tokens on Hopper share, BF16 and FP8: rows in groups (matrices, heads,
// experts) and the walk over their tiles; and a warp's way from sums to memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/mbarrier.h"
#include "cuda/warp.h"
#include "products/hopper/gemm_launch.h"

namespace fathom {

inline constexpr int kStagedBytes = 128;  // of a row of staging memory

// A value that is the same in all lanes, in a way that the compiler knows.
template <class V>
__device__ __forceinline__ V Uniform(V value) {
  return __shfl_sync(kAllLanes, value, 0);
}

// In shared memory.
struct TokenGroups {
  int32_t tile_end[kMaxGroups];  // tiles of a cluster up to and with each group
  int32_t row_begin[kMaxGroups], row_count[kMaxGroups];
  int32_t warp_tiles[kMaxGroups / 2 / 32];
};

// Reads the groups' rows and sums their tiles, two groups a thread; tiles_of: a cluster's tiles of
// so many tokens. All threads of a block of at least kMaxGroups / 2.
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
      groups.row_count[group] = count_of(group);
      groups.row_begin[group] = begin_of(group);
      tiles[i] = tiles_of(groups.row_count[group]);
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
  int32_t row, column;  // first row of the group; tiles of the cluster before it in its row
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

// Tile `index` of a group with `down` rows of tiles. Bands of 2048 rows keep x and W of blocks that
// run together in the L2.
template <int kTileRows>
__device__ __forceinline__ void PlaceInBands(int32_t down, int32_t across, int32_t index,
                                             TilePlace& place) {
  constexpr int32_t kBand = 2048 / kTileRows;
  const int32_t band = index / (kBand * across), in_band = index - band * kBand * across;
  const int32_t height = min(kBand, down - band * kBand);
  place.column = in_band / height;
  place.row = (band * kBand + in_band - place.column * height) * kTileRows;
}

// The place of the cluster's tile `index`; false once there is none.
template <int kTileRows>
__device__ bool FindTile(const TokenGroups& groups, int32_t number, int32_t across, int32_t index,
                         TilePlace& place) {
  if (!FindGroup(groups, number, index, place.group)) return false;
  const int32_t rows = groups.row_count[place.group];
  PlaceInBands<kTileRows>((rows + kTileRows - 1) / kTileRows, across, index, place);
  return true;
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Stages chunks (of 8 numbers) `chunk` and the next of a warp's 16 rows; y: this thread's pairs of
// the two. Chunk c of row r lies at chunk c ^ (r % 8).
__device__ __forceinline__ void StagePacked(uint8_t* staging, int chunk, const uint32_t* y,
                                            int lane) {
  // A lane names a row of one of the four 8 x 8 matrices: rows 0-7 and 8-15 of both chunks.
  const int row = lane % 16, to = (chunk + lane / 16) ^ row % 8;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   SharedAddress(staging) + row * kStagedBytes + to * 16),
               "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3])
               : "memory");
}
// The same of sums.
__device__ __forceinline__ void StageBf16(uint8_t* staging, int chunk, const float* y, int lane) {
  const uint32_t pairs[4] = {PackBf16(y[0], y[1]), PackBf16(y[2], y[3]), PackBf16(y[4], y[5]),
                             PackBf16(y[6], y[7])};
  StagePacked(staging, chunk, pairs, lane);
}

// Sends 16 rows of kChunks staged chunks of 16 bytes to rows of `stride` bytes, of which `rows` and
// `bytes` are there.
template <int kChunks>
__device__ __forceinline__ void StoreStaged(const uint8_t* staging, uint8_t* to, int64_t stride,
                                            int rows, int bytes, int lane) {
  constexpr int kRowsAtATime = 32 / kChunks;
#pragma unroll
  for (int first = 0; first < 16; first += kRowsAtATime) {
    const int row = first + lane / kChunks, chunk = lane % kChunks;
    const uint4 value =
        *reinterpret_cast<const uint4*>(staging + row * kStagedBytes + (chunk ^ row % 8) * 16);
    if (row < rows && chunk * 16 < bytes) {
      *reinterpret_cast<uint4*>(to + row * stride + chunk * 16) = value;
    }
  }
}

// A warp's 16 rows of kChannels sums, of which `rows` and `channels` are there.
template <int kChannels>
__device__ __forceinline__ void StoreF32(const float* y, float* to, int64_t stride, int rows,
                                         int channels, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half, column = lane % 4 * 2;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      if (column + 8 * j < channels) {
        *reinterpret_cast<float2*>(to + row * stride + column + 8 * j) =
            make_float2(y[4 * j + 2 * half], y[4 * j + 2 * half + 1]);
      }
    }
  }
}

}  // namespace fathom
