// The narrow MLA decode kernel's shared memory, and the warp that fills it.
#pragma once

#include "cuda/exp2.h"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "ops/attend_absorbed/mla_decode_narrow_work.cuh"
#include "ops/attend_absorbed/mla_decode_widen.cuh"

namespace fathom::mla {

inline constexpr int kNarrowChunks = 9;       // of 64 values: 8 of the latent, 1 of the rotated key
inline constexpr int kTileChunkBytes = 8192;  // 64 positions of 128 bytes, swizzled
inline constexpr int kHeadChunkBytes = 2048;  // 16 heads of 128 bytes, swizzled

inline constexpr int kNarrowColumns = 2 * kNarrowHeads;  // of two tokens

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

// Tiles alternate between the buffers. Half g of a tile is summed up by warpgroup g, which frees
// it.
struct NarrowShared {
  alignas(1024) uint8_t keys[2][kNarrowChunks][kTileChunkBytes];
  // Chunks of one token's heads, 2048 bytes each, or of two tokens', 4096 bytes.
  uint8_t query[kNarrowChunks][2 * kHeadChunkBytes];
  uint8_t weights[2][2 * kHeadChunkBytes];  // [tile][column][64 positions]
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
  Mbarrier full[2][2];               // [buffer][half]: chunks 0-3, chunks 4-8
  Mbarrier empty[2][2];
  int32_t pages[kWarp];  // of an item's next tiles
  WidenShared widen;
};

// Loads a tile, each half once its place is free.
template <bool kFp8>
__device__ __forceinline__ void LoadTile(NarrowShared& s, const Maps& maps, int buffer,
                                         int32_t page, uint32_t parity, uint64_t policy) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    s.empty[buffer][half].Wait(parity);
    Mbarrier& full = s.full[buffer][half];
    const int rope = half == 1 ? kTileChunkBytes : 0;
    if constexpr (kFp8) {
      Mbarrier& raw = s.widen.raw[buffer][half];
      raw.ArriveExpect(kRawHalfBytes + (half == 0 ? kKeys * 4 : 0));
      if (half == 0) TmaLoad2(s.widen.scales[buffer], &maps.scales, raw, policy, 0, page);
      TmaLoad4(s.keys[buffer][4 * half + kRawChunk], &maps.latent, raw, policy,
               {0, 0, 2 * half, page});
      full.ArriveExpect(rope);
    } else {
      full.ArriveExpect(4 * kTileChunkBytes + rope);
      TmaLoad4(s.keys[buffer][4 * half], &maps.latent, full, policy, {0, 0, 4 * half, page});
    }
    if (rope > 0) TmaLoad4(s.keys[buffer][8], &maps.rope, full, policy, {0, 0, 0, page});
  }
}

// One load brings the latent channels of all heads, one the rotated ones; of two tokens, those of
// both lie together in each chunk. A second one that the item does not have is another row's, or
// zeros behind the step's: columns do not meet.
__device__ __forceinline__ void LoadQuery(NarrowShared& s, const Maps& maps,
                                          const NarrowItem& item) {
  const uint64_t keep = EvictNormal();
  uint8_t* rope = s.query[0] + item.width() * 8 * kHeadChunkBytes;
  s.query_full.ArriveExpect(item.width() * kNarrowChunks * kHeadChunkBytes);
  if (item.width() == 1) {
    TmaLoad4(s.query, &maps.q_latent, s.query_full, keep, {0, 0, item.token, 0});
    TmaLoad3(rope, &maps.q_rope, s.query_full, keep, {0, 0, item.token});
  } else {
    TmaLoad4(s.query, &maps.pair_latent, s.query_full, keep, {0, 0, item.token, 0});
    TmaLoad3(rope, &maps.pair_rope, s.query_full, keep, {0, 0, item.token});
  }
}

// The producer: one warp.
template <bool kFp8>
__device__ void ProduceNarrow(NarrowShared& s, const Maps& maps, const NarrowStep& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t again = EvictNormal(), once = EvictFirst();
  NarrowWalk walk(step, s.tokens);
  uint32_t query_parity = 0, parities = 0;  // bit b: of buffer b
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
        const int buffer = tile % 2;
        LoadTile<kFp8>(s, maps, buffer, s.pages[tile - begin], (parities >> buffer & 1) ^ 1,
                       item.shared ? again : once);
        parities ^= 1u << buffer;
      }
      __syncwarp();
    }
  }
}

}  // namespace fathom::mla
