// The narrow MLA decode kernel's shared memory, and the warp that fills it.
#pragma once

#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "ops/attend_absorbed/mla_decode_narrow_work.cuh"
#include "ops/attend_absorbed/mla_decode_widen.cuh"

namespace fathom::mla {

inline constexpr int kNarrowChunks = 9;       // of 64 values: 8 of the latent, 1 of the rotated key
inline constexpr int kTileChunkBytes = 8192;  // 64 positions of 128 bytes, swizzled
inline constexpr int kHeadChunkBytes = 2048;  // 16 heads of 128 bytes, swizzled

// Tiles alternate between the buffers: warpgroup g has all tiles of buffer g.
struct NarrowShared {
  alignas(1024) uint8_t keys[2][kNarrowChunks][kTileChunkBytes];
  uint8_t query[kNarrowChunks][kHeadChunkBytes];
  uint8_t weights[2][kHeadChunkBytes];  // [16 heads][64 positions]
  float exchange[2][32][128];           // the half of its sums that the other group merges
  float best[2][4][kNarrowHeads];       // by warp: greatest score of a tile
  float max[2][kNarrowHeads];           // of a group's positions, in units of log2
  float sum[2][4][kNarrowHeads];        // by warp: weights of a group's positions
  NarrowItem item;
  Mbarrier query_full, query_empty;  // `item` goes with the query
  Mbarrier full[2][2];               // [buffer][half]: chunks 0-3, chunks 4-8
  Mbarrier empty[2];
  WidenShared widen;
};

// Loads a tile, once its place is free.
template <bool kFp8>
__device__ __forceinline__ void LoadTile(NarrowShared& s, const Maps& maps, int buffer,
                                         int32_t page, uint64_t policy) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
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

// The producer: one warp.
template <bool kFp8>
__device__ void ProduceNarrow(NarrowShared& s, const Maps& maps, const NarrowStep& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t keep = EvictNormal(), once = EvictFirst();
  NarrowWalk walk(step);
  uint32_t query_parity = 0, parities = 0;  // bit b: of buffer b
  for (int32_t turn = 0;; ++turn) {
    const NarrowItem item = walk.Take(turn);
    const int32_t tiles = item.token < 0 ? 0 : item.tiles();
    const int32_t* table =
        step.page_table + int64_t{item.slot} * step.max_pages + item.group * (kGroupTokens / kKeys);
    int32_t pages = lane < tiles ? table[lane] : 0;
    if (lane == 0) {
      s.query_empty.Wait(query_parity ^ 1);
      s.item = item;
      if (item.token < 0) {
        s.query_full.Arrive();
      } else {
        const int32_t first_pair = item.token * step.heads;
        s.query_full.ArriveExpect(sizeof(s.query));
        TmaLoad3(s.query[0], &maps.q_latent, s.query_full, keep, {0, first_pair, 0});
        TmaLoad3(s.query[8], &maps.q_rope, s.query_full, keep, {0, 0, item.token});
      }
    }
    query_parity ^= 1;
    if (item.token < 0) return;

    for (int32_t tile = 0; tile < tiles; ++tile) {
      if (tile % 32 == 0 && tile > 0) pages = tile + lane < tiles ? table[tile + lane] : 0;
      const int32_t page = __shfl_sync(kAllLanes, pages, tile % 32);
      const int buffer = tile % 2;
      if (lane == 0) {
        s.empty[buffer].Wait(((parities >> buffer) & 1) ^ 1);
        LoadTile<kFp8>(s, maps, buffer, page, once);
      }
      parities ^= 1u << buffer;
    }
  }
}

}  // namespace fathom::mla
