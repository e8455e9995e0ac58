// How expanded attention loads: a block's shared memory, the warp that finds items, and the
// thread that loads.
#pragma once

#include "cuda/l2_policy.h"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "cuda/warp.h"
#include "ops/attend_expanded/flash_attend_items.cuh"

namespace fathom::flash {

constexpr int kChunkBytes = 16384;                 // 128 tile rows of 64 values, swizzled
constexpr int kQueryChunkBytes = kChunkBytes / 2;  // 64 tile rows

template <int kGroups>
struct Shared {
  alignas(1024) uint8_t query[kGroups][3][kQueryChunkBytes];
  alignas(1024) uint8_t keys[2][3][kChunkBytes];
  alignas(1024) uint8_t values[2][2][kChunkBytes];
  alignas(128) uint8_t staging[kGroups][64 * 128];  // of outputs
  ItemBuffer<kGroups> items[2];
  Mbarrier query_full[kGroups], query_empty[kGroups];  // with an item, whose bytes come later
  Mbarrier keys_full[2], keys_empty[2], values_full[2], values_empty[2];
  Mbarrier item_wanted;  // by the loader, when the buffer of the item before is free
  Mbarrier item_found;   // the next item is written
};

// A warp: finds the block's items, one ahead of the thread that loads them.
template <int kGroups>
__device__ void FindItems(Shared<kGroups>& s, const Step& step) {
  Items<kGroups> items(step);
  for (uint32_t n = 0;; ++n) {
    if (n > 0) s.item_wanted.Wait((n - 1) & 1);
    const Item item = items.Next(s.items[n & 1]);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) s.item_found.Arrive();
    if (item.most == 0) return;
  }
}

// A thread: of each item the first keys, the query, and the other tiles as their places are free.
template <int kGroups>
class Loader {
 public:
  __device__ Loader(Shared<kGroups>& s, const Maps& maps) : s_(s), maps_(maps) {}

  __device__ void Run() {
    for (uint32_t n = 0;; ++n) {
      s_.item_found.Wait(n & 1);
      const Item item = s_.items[n & 1].item;
      const int32_t tiles = Tiles(item.most);
      if (tiles > 0) LoadKeys(item, 0);  // whose buffer is free before the query's
      LoadQuery(item, n & 1);
      if (tiles == 0) return;
      for (int32_t tile = 0; tile < tiles; ++tile) {
        // Asked for late, an item goes to the block that is first done. The query's buffer was
        // free, so the item's before this one is.
        if (tile + 1 == tiles) s_.item_wanted.Arrive();
        if (tile > 0) LoadKeys(item, tile);
        LoadValues(item, tile);
        ring_.Advance();
      }
    }
  }

 private:
  __device__ void LoadQuery(const Item& item, uint32_t parity) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      s_.query_empty[group].Wait(parity ^ 1);
      if (item.most == 0) {
        s_.query_full[group].Arrive();
        continue;
      }
      s_.query_full[group].ArriveExpect(sizeof(s_.query[group]));
      TmaLoad4(s_.query[group], &maps_.q, s_.query_full[group], kTmaEvictFirst,
               {0, item.token + group * kTokensOfGroup, 0, item.head});
    }
  }

  __device__ void LoadKeys(const Item& item, int32_t tile) {
    const uint32_t stage = ring_.index;
    const int32_t position = item.at + tile * kKeys;
    s_.keys_empty[stage].Wait(ring_.parity ^ 1);
    s_.keys_full[stage].ArriveExpect(3 * kChunkBytes);
    TmaLoad4(s_.keys[stage], &maps_.kv, s_.keys_full[stage], kTmaEvictNormal,
             {0, position, 0, item.head});
    TmaLoad2(s_.keys[stage][2], &maps_.rope, s_.keys_full[stage], kTmaEvictNormal, 0, position);
  }
  __device__ void LoadValues(const Item& item, int32_t tile) {
    const uint32_t stage = ring_.index;
    s_.values_empty[stage].Wait(ring_.parity ^ 1);
    s_.values_full[stage].ArriveExpect(2 * kChunkBytes);
    TmaLoad4(s_.values[stage], &maps_.kv, s_.values_full[stage], kTmaEvictNormal,
             {0, item.at + tile * kKeys, 2, item.head});
  }

  Shared<kGroups>& s_;
  const Maps& maps_;
  RingPosition<2> ring_;
};

}  // namespace fathom::flash
