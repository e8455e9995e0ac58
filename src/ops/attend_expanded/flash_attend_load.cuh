// How expanded attention loads: a block's shared memory, and the warp that fills it.
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
};

// A warp: lane 0 loads.
template <int kGroups>
class Producer {
 public:
  __device__ Producer(Shared<kGroups>& s, const Maps& maps, const Step& step)
      : s_(s), maps_(maps), items_(step), leads_(threadIdx.x % kWarp == 0) {}

  __device__ void Run() {
    Item item = items_.Next(s_.items[0]);
    for (uint32_t n = 0;; ++n) {
      __syncwarp();  // what Next() wrote
      if (leads_) LoadQuery(item, n & 1);
      if (item.most == 0) return;
      const int32_t tiles = Tiles(item.most);
      for (int32_t tile = 0; tile < tiles; ++tile) {
        if (leads_) LoadTile(item, tile);
        ring_.Advance();
      }
      // Lane 0 has seen, by the query's buffer, that the item's is free. Asked for late, an item
      // goes to the block that is first done.
      __syncwarp();
      item = items_.Next(s_.items[(n + 1) & 1]);
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
      TmaLoad4(s_.query[group], &maps_.q, s_.query_full[group], EvictFirst(),
               {0, item.token + group * kTokensOfGroup, 0, item.head});
    }
  }

  __device__ void LoadTile(const Item& item, int32_t tile) {
    const uint64_t keep = EvictNormal();
    const uint32_t stage = ring_.index, empty = ring_.parity ^ 1;
    const int32_t position = item.at + tile * kKeys;
    s_.keys_empty[stage].Wait(empty);
    s_.keys_full[stage].ArriveExpect(3 * kChunkBytes);
    TmaLoad4(s_.keys[stage], &maps_.kv, s_.keys_full[stage], keep, {0, position, 0, item.head});
    TmaLoad2(s_.keys[stage][2], &maps_.rope, s_.keys_full[stage], keep, 0, position);
    s_.values_empty[stage].Wait(empty);
    s_.values_full[stage].ArriveExpect(2 * kChunkBytes);
    TmaLoad4(s_.values[stage], &maps_.kv, s_.values_full[stage], keep, {0, position, 2, item.head});
  }

  Shared<kGroups>& s_;
  const Maps& maps_;
  Items<kGroups> items_;
  RingPosition<2> ring_;
  const bool leads_;
};

}  // namespace fathom::flash
