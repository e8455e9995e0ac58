// The narrow MLA decode kernel's shared memory, and the warp that fills it.
#pragma once

#include <algorithm>

#include "cuda/exp2.h"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "ops/attend_absorbed/mla_decode_by_column.cuh"
#include "ops/attend_absorbed/mla_decode_code_tile.cuh"
#include "ops/attend_absorbed/mla_decode_narrow_work.cuh"

namespace fathom::mla {

inline constexpr int kNarrowChunks = 9;       // of 64 values: 8 of the latent, 1 of the rotated key
inline constexpr int kTileChunkBytes = 8192;  // 64 positions of 128 bytes, swizzled
inline constexpr int kHeadChunkBytes = 2048;  // 16 heads of 128 bytes, swizzled

inline constexpr int kNarrowColumns = 2 * kNarrowHeads;  // of two tokens

// A tile in shared memory: chunks of the latent, and one of the rotated key. In BF16 two tiles
// alternate; an FP8 cache's, which are smaller, go round four places.
template <bool kFp8>
struct NarrowTiles {
  static constexpr int kCount = kFp8 ? 4 : 2;
  static constexpr int kLatentChunks = kFp8 ? kCodeChunks : 8;
  static constexpr int kHalf = kLatentChunks / 2;  // chunks
  static constexpr int kTileBytes = (kLatentChunks + 1) * kTileChunkBytes;
  static constexpr int kBytes = kCount * kTileBytes;
};
inline constexpr int kMostTiles = NarrowTiles<true>::kCount;

// Which places the tiles of a group of positions take, the even one, 0, and the odd one, 1, the
// parities of these places' phases, and how many groups there were.
template <bool kFp8>
struct NarrowPhase {
  // From bit 3 on groups. Below, BF16: both parities; FP8: how many tiles there were, modulo 8.
  uint32_t bits = 0;

  __device__ int Buffer(int tile) const {
    return kFp8 ? static_cast<int>((bits + tile) % 4) : tile;
  }
  __device__ uint32_t Parity(int tile) const {
    return kFp8 ? (bits + tile) / 4 % 2 : bits >> tile & 1;
  }
  __device__ uint32_t groups() const { return bits >> 3; }
  // To the next group: this one had so many tiles.
  __device__ void Advance(int tiles) {
    const uint32_t next = kFp8 ? (bits + tiles) & 7 : (bits ^ (tiles == 2 ? 3 : 1)) & 7;
    bits = ((bits >> 3) + 1) << 3 | next;
  }
};

// A result over some positions: values (elsewhere), their greatest score, and the sum of weights.
// Folding in another gives the factors of both sides' values. At first there is nothing in it.
struct Running {
  float max = -INFINITY, sum = 0;

  __device__ __forceinline__ void Fold(float other_max, float other_sum, float& keep, float& take) {
    const float both = fmaxf(max, other_max), base = both == -INFINITY ? 0 : both;
    keep = Exp2(max - base);
    take = Exp2(other_max - base);
    max = both;
    sum = __fmaf_rn(sum, keep, __fmul_rn(other_sum, take));
  }
  static __device__ __forceinline__ float Apply(float value, float keep, float other, float take) {
    return __fmaf_rn(value, keep, __fmul_rn(other, take));
  }
};

// Half g of a tile is summed up by warpgroup g, which frees it.
struct NarrowShared {
  alignas(1024) uint8_t tiles[std::max(NarrowTiles<false>::kBytes, NarrowTiles<true>::kBytes)];
  // Chunks of one token's heads, 2048 bytes each, or of two tokens', 4096 bytes.
  uint8_t query[kNarrowChunks][2 * kHeadChunkBytes];
  // BF16: [0][tile][column][64 positions]. FP8, by parity of the group of positions, as group 1 may
  // still add the even tile when group 0 has the next one's weights: see StoreWeightCodes.
  uint8_t weights[2][2][2 * kHeadChunkBytes];
  // [tile][warp]: greatest scores; and for that warp alone, what weights are relative to.
  alignas(16) float best[2][4][kNarrowColumns], base[2][4][kNarrowColumns];
  // A tile's weights: by warp, their sums; what they are relative to, in units of log2; and what
  // sums over the tile before it are multiplied by.
  struct Columns {
    alignas(16) float sum[4][kNarrowColumns];
    float max[kNarrowColumns], scale[kNarrowColumns];
  };
  Columns column[2][2];  // [parity of the group of positions][tile]
  // What values over the section or the item so far, and new ones, are multiplied by, and one over
  // the item's sum of weights.
  struct Factors {
    alignas(16) float2 section[kNarrowColumns], item[kNarrowColumns];
    float inverse[kNarrowColumns];
    Mbarrier full;
  };
  Factors factors[2];  // by parity of the group of positions
  NarrowTokens tokens;
  NarrowItem item[2];  // by parity: the next one comes while an item's result is written
  Mbarrier query_full, query_empty;  // `item` goes with the query; 8 warps and the StateKeeper's
  Mbarrier full[kMostTiles][2];      // [buffer][half]: what it holds says LoadTile
  Mbarrier empty[kMostTiles][2];
  int32_t pages[kWarp];  // of an item's next tiles
  // Of an FP8 cache: of tiles' positions; and what scores of a column are multiplied by.
  alignas(128) float scales[kMostTiles][kKeys];
  alignas(16) float query_factor[kNarrowColumns];

  template <bool kFp8>
  __device__ uint8_t* Chunk(int buffer, int chunk) {
    return tiles + buffer * NarrowTiles<kFp8>::kTileBytes + chunk * kTileChunkBytes;
  }
};

// Loads a tile, each half once its place is free. The rotated keys come with the half that is
// scored with them: of codes the first, and their scales too.
template <bool kFp8>
__device__ __forceinline__ void LoadTile(NarrowShared& s, const Maps& maps, int buffer,
                                         int32_t page, uint32_t parity, uint64_t policy) {
  using Tiles = NarrowTiles<kFp8>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    s.empty[buffer][half].Wait(parity);
    Mbarrier& full = s.full[buffer][half];
    const bool rope = half == (kFp8 ? 0 : 1);
    const int scales = kFp8 && half == 0 ? kKeys * 4 : 0;
    full.ArriveExpect((Tiles::kHalf + rope) * kTileChunkBytes + scales);
    if (scales > 0) TmaLoad2(s.scales[buffer], &maps.scales, full, policy, 0, page);
    TmaLoad4(s.Chunk<kFp8>(buffer, half * Tiles::kHalf), &maps.latent, full, policy,
             {0, 0, half * Tiles::kHalf, page});
    if (rope) {
      TmaLoad4(s.Chunk<kFp8>(buffer, Tiles::kLatentChunks), &maps.rope, full, policy,
               {0, 0, 0, page});
    }
  }
}

// One load brings the latent channels of all heads, one the rotated ones; of two tokens, those of
// both lie together in each chunk. A second one that the item does not have is another row's, or
// zeros behind the step's: columns do not meet.
__device__ __forceinline__ void LoadQuery(NarrowShared& s, const Maps& maps,
                                          const NarrowItem& item) {
  uint8_t* rope = s.query[0] + item.width() * 8 * kHeadChunkBytes;
  s.query_full.ArriveExpect(item.width() * kNarrowChunks * kHeadChunkBytes);
  if (item.width() == 1) {
    TmaLoad4(s.query, &maps.q_latent, s.query_full, kTmaEvictNormal, {0, 0, item.token, 0});
    TmaLoad3(rope, &maps.q_rope, s.query_full, kTmaEvictNormal, {0, 0, item.token});
  } else {
    TmaLoad4(s.query, &maps.pair_latent, s.query_full, kTmaEvictNormal, {0, 0, item.token, 0});
    TmaLoad3(rope, &maps.pair_rope, s.query_full, kTmaEvictNormal, {0, 0, item.token});
  }
}

// The producer: one warp.
template <bool kFp8, bool kMany>
__device__ void ProduceNarrow(NarrowShared& s, const Maps& maps, const NarrowStep& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  NarrowWalk<kMany> walk(step, &s.tokens, static_cast<int32_t>(gridDim.x));
  uint32_t query_parity = 0;
  NarrowPhase<kFp8> phase;
  for (int32_t turn = 0;; ++turn) {
    const NarrowItem item = walk.Take(turn);
    const int32_t tiles = item.token < 0 ? 0 : item.tiles();
    const int32_t* table =
        step.page_table + int64_t{item.slot} * step.max_pages + item.group * (kGroupTokens / kKeys);
    int32_t page = lane < tiles ? table[lane] : 0;
    if (turn == 0) {
      WaitForPriorKernels();  // so far only what is early (ops.h) was read
      AllowNextKernel();
    }
    walk.Publish(turn, item);
    if (lane == 0) {
      s.query_empty.Wait(query_parity ^ 1);
      s.item[query_parity] = item;
      if (item.token < 0) {
        s.query_full.Arrive();
      } else {
        LoadQuery(s, maps, item);
      }
    }
    query_parity ^= 1;
    if (item.token < 0) return;

    // One thread walks the tiles, without a word to its warp, which would cost it time.
    for (int32_t begin = 0; begin < tiles; begin += kWarp) {
      s.pages[lane] = page;
      page = begin + kWarp + lane < tiles ? table[begin + kWarp + lane] : 0;
      __syncwarp();
      for (int32_t tile = begin; lane == 0 && tile < min(tiles, begin + kWarp); ++tile) {
        const int odd = tile % 2;
        LoadTile<kFp8>(s, maps, phase.Buffer(odd), s.pages[tile - begin], phase.Parity(odd) ^ 1,
                       item.shared ? kTmaEvictNormal : kTmaEvictFirst);
        if (odd == 1 || tile + 1 == tiles) phase.Advance(1 + odd);
      }
      __syncwarp();
    }
  }
}

}  // namespace fathom::mla
