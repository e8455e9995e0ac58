// The wide MLA decode kernel's shared memory, and the warp that fills it.
#pragma once

#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "ops/attend_absorbed/mla_decode_order.cuh"
#include "ops/attend_absorbed/mla_decode_widen.cuh"

namespace fathom::mla {

inline constexpr int kChunks = 9;         // of 64 values: 8 of the latent, 1 of the rotated key
inline constexpr int kChunkBytes = 8192;  // 64 tile rows of 128 bytes, swizzled
inline constexpr int kRopeChunk = 8;
// Tiles with an even number in their item lie in buffer 0, the others in buffer 1. The weights that
// the owner of a tile leaves for the other group overwrite its rotated keys, so those are freed
// with the half that the other group reads.
struct Shared {
  alignas(1024) uint8_t query[kChunks][kChunkBytes];
  alignas(1024) uint8_t keys[2][kChunks][kChunkBytes];
  float max[2][kPairs];     // running maxima after the even and the odd tile, in units of log2
  float scale[2][kPairs];   // what they shrink earlier sums by
  float sum[2][2][kPairs];  // [parity of the item][group]: its share of the sum of weights
  Item item[2];             // by parity: the next one comes while an item's result is written
  Mbarrier query_full, query_empty;  // `item` goes with the query
  Mbarrier full[2][2];               // [buffer][half]: chunks 0-3, chunks 4-7
  Mbarrier empty[2][2];
  int32_t pages[kWarp];  // of an item's next tiles
  OrderShared<kPassTokens> order;
  WidenShared widen;
};

// The half of a buffer that the rotated keys are filled and freed with.
__device__ __forceinline__ constexpr int RopeHalf(int buffer) {
  return buffer == 0 ? 1 : 0;
}

// Loads half a tile, once its place is free.
template <bool kFp8>
__device__ __forceinline__ void LoadHalf(Shared& s, const Maps& maps, int buffer, int half,
                                         int32_t page, uint64_t policy) {
  const bool rope = RopeHalf(buffer) == half;
  Mbarrier& full = s.full[buffer][half];
  if constexpr (kFp8) {
    Mbarrier& raw = s.widen.raw[buffer][half];
    raw.ArriveExpect(kRawHalfBytes + (half == buffer ? kKeys * 4 : 0));
    TmaLoad4(s.keys[buffer][4 * half + kRawChunk], &maps.latent, raw, policy,
             {0, 0, 2 * half, page});
    if (half == buffer) TmaLoad2(s.widen.scales[buffer], &maps.scales, raw, policy, 0, page);
    full.ArriveExpect(rope ? kChunkBytes : 0);
  } else {
    full.ArriveExpect((rope ? 5 : 4) * kChunkBytes);
    TmaLoad4(s.keys[buffer][4 * half], &maps.latent, full, policy, {0, 0, 4 * half, page});
  }
  if (rope) TmaLoad4(s.keys[buffer][kRopeChunk], &maps.rope, full, policy, {0, 0, 0, page});
}

// The producer: one warp feeds queries and tiles to the consumers, in the order of the items.
template <bool kFp8>
__device__ void Produce(Shared& s, const Maps& maps, const Step& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  ItemOrder order(s.order, step, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(gridDim.x));
  uint32_t query_parity = 0, parities = 0;  // bit b: of buffer b
  for (bool first = true;; first = false) {
    const Item item = order.Next();
    const int32_t tiles = item.tokens == 0 ? 0 : item.tiles();
    const int32_t* table =
        step.page_table + int64_t{item.slot} * step.max_pages + item.begin() / kKeys;
    int32_t page = lane < tiles ? table[lane] : 0;
    if (first) {
      WaitForPriorKernels();  // so far only what is early (ops.h) was read
      AllowNextKernel();
    }
    if (lane == 0) {
      s.query_empty.Wait(query_parity ^ 1);
      s.item[query_parity] = item;
      if (item.tokens == 0) {
        s.query_full.Arrive();
      } else {
        const int32_t boxes = (item.pairs(step) + kQueryBox - 1) / kQueryBox;
        const int32_t first_pair = item.token * step.heads + item.head_block * kPairs;
        s.query_full.ArriveExpect(boxes * kQueryBox * 128 * kChunks);
        for (int box = 0; box < boxes; ++box) {
          const int32_t at = box * kQueryBox;
          for (int chunk = 0; chunk < kRopeChunk; ++chunk) {
            TmaLoad3(s.query[chunk] + at * 128, &maps.q_latent, s.query_full, kTmaEvictNormal,
                     {0, first_pair + at, chunk});
          }
          if (step.heads == kQueryBox) {  // a token a box, and tokens may lie apart
            TmaLoad3(s.query[kRopeChunk] + at * 128, &maps.q_rope, s.query_full, kTmaEvictNormal,
                     {0, 0, item.token + box});
          } else {
            TmaLoad3(s.query[kRopeChunk] + at * 128, &maps.q_rope, s.query_full, kTmaEvictNormal,
                     {0, first_pair + at, 0});
          }
        }
      }
    }
    query_parity ^= 1;
    if (item.tokens == 0) return;

    // One thread walks the tiles, without a word to its warp, which would cost it time.
    for (int32_t begin = 0; begin < tiles; begin += kWarp) {
      s.pages[lane] = page;
      page = begin + kWarp + lane < tiles ? table[begin + kWarp + lane] : 0;
      __syncwarp();
      for (int32_t tile = begin; lane == 0 && tile < min(tiles, begin + kWarp); ++tile) {
        const int buffer = tile % 2;
        const uint32_t parity = ((parities >> buffer) & 1) ^ 1;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int half = i ^ buffer;
          s.empty[buffer][half].Wait(parity);
          LoadHalf<kFp8>(s, maps, buffer, half, s.pages[tile - begin], kTmaEvictFirst);
        }
        parities ^= 1 << buffer;
      }
      __syncwarp();
    }
  }
}

}  // namespace fathom::mla
