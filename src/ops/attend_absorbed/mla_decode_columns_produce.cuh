// The columns kernel's shared memory, and the warps that fill it and pass on what is in it.
#pragma once

#include "cuda/cluster.h"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "ops/attend_absorbed/mla_decode_produce.cuh"

namespace fathom::mla {

inline constexpr int kPagesAhead = 64;

template <int kBlocks>
struct ColumnsShared {
  static constexpr int kColumns = kLatent / kBlocks;
  static constexpr int kValueChunks = kColumns / 64;
  struct Slot {
    uint8_t weights[kChunkBytes];  // of all pairs, from the block that scored the tile
    uint8_t values[kValueChunks][kChunkBytes];
  };

  alignas(1024) uint8_t keys[kChunks][kChunkBytes];  // a query, and tiles to score
  alignas(1024) Slot slots[kBlocks];              // tiles to sum up, by the block that scored them
  alignas(1024) uint8_t weights[2][kChunkBytes];  // of this block's tiles, by round, on their way
  float best[4][kBlocks][kPairs];        // by round and block: greatest scores of tiles, in log2
  alignas(128) float key_scales[kKeys];  // of an FP8 cache: of the tile to score
  int32_t pages[kPagesAhead];            // of an item's tiles
  Item item[2];                          // by parity of the item
  OrderShared<kColumnsTokens> order;
  Mbarrier item_full[2], item_empty[2];
  Mbarrier keys_full[2], keys_empty[2];  // of chunks 0-3, 4-8
  Mbarrier slot_full[kBlocks], slot_empty[kBlocks];
  Mbarrier key_codes[2], slot_codes[kBlocks];  // of an FP8 cache: those that are there
  Mbarrier best_full[4];
  Mbarrier weights_full[2], weights_empty[2];
  // By parity of the round: each block's weights are in the exchange; all have summed up this
  // block's tile.
  Mbarrier weights_there[2][kBlocks], summed[2];
};

// Who says that values are there: the warp that loads them, or those that widen them.
template <bool kFp8, int kBlocks>
inline constexpr int kValueArrivals = kFp8 ? ColumnsShared<kBlocks>::kValueChunks : 1;

// How items are taken in turn by those who need one: a warp, or the warps of a warpgroup.
template <int kBlocks>
class ItemReader {
 public:
  using S = ColumnsShared<kBlocks>;
  __device__ explicit ItemReader(S& s) : s_(s) {}
  __device__ Item Next() {
    s_.item_full[index_ % 2].Wait(index_ / 2 % 2);
    const Item item = s_.item[index_ % 2];
    __syncwarp();
    if (threadIdx.x % 32 == 0) s_.item_empty[index_ % 2].Arrive();
    ++index_;
    return item;
  }

 private:
  S& s_;
  uint32_t index_ = 0;
};
// Warps that do: of two warpgroups, of values, of weights on their way out and in, and those that
// widen.
template <bool kFp8>
inline constexpr int kItemReaders = kFp8 ? 19 : 11;
// Each has one chunk of the values of all slots.
inline constexpr int kColumnsWidenWarps = 8;
// A chunk's codes lie in the second half of its place, positions' scales in the first.
inline constexpr int kSlotCodes = kChunkBytes / 2;

// Odd tiles are scored from the second half on, as in the kernel of one block.
template <bool kFp8, int kBlocks>
__device__ void LoadQuery(ColumnsShared<kBlocks>& s, const Maps& maps, const Step& step,
                          const Item& item, uint32_t parity) {
  const int odd = static_cast<int>(ClusterRank() % 2);
  const int32_t boxes = (item.pairs(step) + kQueryBox - 1) / kQueryBox;
  const int32_t first_pair = item.token * step.heads + item.head_block * kPairs;
  for (int half = 0; half < 2; ++half) {
    s.keys_empty[half].Wait(parity);
    Mbarrier& full = s.keys_full[half];
    full.ArriveExpect(boxes * kQueryBox * 128 * (4 + half));
    for (int i = 0; kFp8 && i < kColumnsWidenWarps; ++i) full.Arrive();  // nothing to widen
    for (int32_t at = 0; at < boxes * kQueryBox; at += kQueryBox) {
      for (int chunk = 4 * half; chunk < 4 * half + 4; ++chunk) {
        TmaLoad3(s.keys[chunk] + at * 128, &maps.q_latent, full, kTmaEvictNormal,
                 {0, first_pair + at, (chunk + 4 * odd) % 8});
      }
      if (half == 1) {
        TmaLoad3(s.keys[kRopeChunk] + at * 128, &maps.q_rope, full, kTmaEvictNormal,
                 {0, first_pair + at, 0});
      }
    }
  }
}

// Half of a tile to score, once its place is free.
template <bool kFp8, int kBlocks>
__device__ __forceinline__ void LoadKeys(ColumnsShared<kBlocks>& s, const Maps& maps, int half,
                                         int odd, int32_t page, uint32_t parity) {
  s.keys_empty[half].Wait(parity);
  Mbarrier& full = s.keys_full[half];
  if constexpr (kFp8) {
    Mbarrier& codes = s.key_codes[half];
    codes.ArriveExpect(kRawHalfBytes + (half == 0 ? sizeof(s.key_scales) : 0));
    TmaLoad4(s.keys[4 * half + kRawChunk], &maps.latent, codes, kTmaEvictNormal,
             {0, 0, 2 * (half ^ odd), page});
    if (half == 0) TmaLoad2(s.key_scales, &maps.scales, codes, kTmaEvictNormal, 0, page);
    full.ArriveExpect(half == 1 ? kChunkBytes : 0);
  } else {
    full.ArriveExpect((4 + half) * kChunkBytes);
    TmaLoad4(s.keys[4 * half], &maps.latent, full, kTmaEvictNormal, {0, 0, 4 * (half ^ odd), page});
  }
  if (half == 1) TmaLoad4(s.keys[kRopeChunk], &maps.rope, full, kTmaEvictNormal, {0, 0, 0, page});
}

// The warp that finds items, and loads queries and the tiles that this block scores.
template <bool kFp8, int kBlocks>
__device__ void ProduceKeys(ColumnsShared<kBlocks>& s, const Maps& maps, const Step& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto block_of_cluster = static_cast<int32_t>(ClusterRank());
  const int odd = block_of_cluster % 2;
  ItemOrder order(s.order, step, static_cast<int32_t>(blockIdx.x) / kBlocks,
                  static_cast<int32_t>(gridDim.x) / kBlocks);
  uint32_t turn = 0, parity = 1;  // at first there is room
  for (;; ++turn) {
    const Item item = order.Next();
    const int32_t tiles = item.tokens == 0 ? 0 : item.tiles();
    const int32_t* table =
        step.page_table + int64_t{item.slot} * step.max_pages + item.begin() / kKeys;
    if (lane == 0) {
      s.item_empty[turn % 2].Wait(turn / 2 % 2 ^ 1);
      s.item[turn % 2] = item;
      s.item_full[turn % 2].Arrive();
    }
    __syncwarp();
    if (item.tokens == 0) return;
    int32_t pages = 0;  // a tile of this block's for each lane
    const auto take_pages = [&](int32_t round) {
      const int32_t own = (round + lane) * kBlocks + block_of_cluster;
      pages = own < tiles ? table[own] : 0;
      if (own < tiles) {  // few blocks read: memory must be asked early
        TmaPrefetch4(&maps.latent, {0, 0, 0, pages});
        TmaPrefetch4(&maps.latent, {0, 0, kFp8 ? 2 : 4, pages});
        TmaPrefetch4(&maps.rope, {0, 0, 0, pages});
      }
    };
    if (block_of_cluster < tiles) take_pages(0);
    if (turn == 0) WaitForPriorKernels();  // so far only what is early (ops.h) was read
    if (block_of_cluster < tiles) {
      if (lane == 0) LoadQuery<kFp8>(s, maps, step, item, parity);
      parity ^= 1;
    }
    for (int32_t round = 0; round * kBlocks + block_of_cluster < tiles; ++round) {
      if (round % 32 == 0 && round > 0) take_pages(round);
      const int32_t page = __shfl_sync(kAllLanes, pages, round % 32);
      if (lane == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) LoadKeys<kFp8>(s, maps, half, odd, page, parity);
        // Not before: the next kernel's weights would be in the way of the first loads.
        if (turn == 0 && round == 1) AllowNextKernel();
      }
      parity ^= 1;
    }
    if (turn == 0 && lane == 0) AllowNextKernel();
  }
}

// This block's columns of a tile.
template <bool kFp8, int kBlocks>
__device__ __forceinline__ void LoadValues(ColumnsShared<kBlocks>& s, const Maps& maps, int slot,
                                           int32_t page) {
  constexpr int kChunksOfBlock = ColumnsShared<kBlocks>::kValueChunks;
  const int first = static_cast<int>(ClusterRank()) * kChunksOfBlock;
  auto& values = s.slots[slot].values;
  if constexpr (kFp8) {
    Mbarrier& codes = s.slot_codes[slot];
    codes.ArriveExpect(kChunksOfBlock * kKeys * (64 + 4));
#pragma unroll
    for (int chunk = 0; chunk < kChunksOfBlock; ++chunk) {
      TmaLoad2(values[chunk], &maps.scales, codes, kTmaEvictNormal, 0, page);
      TmaLoad4(values[chunk] + kSlotCodes, &maps.values, codes, kTmaEvictNormal,
               {0, 0, first + chunk, page});
    }
  } else {
    Mbarrier& full = s.slot_full[slot];
    full.ArriveExpect(kChunksOfBlock * kChunkBytes);
    TmaLoad4(values, &maps.values, full, kTmaEvictNormal, {0, 0, first, page});
  }
}

// The warp that loads this block's columns of all tiles.
template <bool kFp8, int kBlocks>
__device__ void ProduceValues(ColumnsShared<kBlocks>& s, const Maps& maps, const Step& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t parity = 1;  // of the round: slots are empty at first
  for (ItemReader<kBlocks> items(s);;) {
    const Item item = items.Next();
    if (item.tokens == 0) return;
    const int32_t tiles = item.tiles();
    const int32_t* table =
        step.page_table + int64_t{item.slot} * step.max_pages + item.begin() / kKeys;
    // One thread walks the tiles, without a word to its warp, which would cost it time.
    const int32_t turns = (tiles + kBlocks - 1) / kBlocks * kBlocks;
    for (int32_t begin = 0; begin < turns; begin += kPagesAhead) {
      for (int32_t tile = begin + lane; tile < min(tiles, begin + kPagesAhead); tile += 32) {
        s.pages[tile - begin] = table[tile];
      }
      __syncwarp();
      for (int32_t tile = begin; lane == 0 && tile < min(turns, begin + kPagesAhead); ++tile) {
        const int slot = tile % kBlocks;
        s.slot_empty[slot].Wait(parity);
        if (tile < tiles) {
          LoadValues<kFp8>(s, maps, slot, s.pages[tile - begin]);
        } else {  // the last round's turn without a tile
          for (int i = 0; i < kValueArrivals<kFp8, kBlocks>; ++i) s.slot_full[slot].Arrive();
        }
        if (slot == kBlocks - 1) parity ^= 1;
      }
      __syncwarp();
    }
  }
}

// Where weights pass from block to block: memory, which is the L2.
template <int kBlocks>
__device__ uint8_t* ExchangePlace(const Output& output, uint32_t round, uint32_t block) {
  const uint32_t cluster = blockIdx.x / kBlocks;
  return output.exchange +
         ((cluster * kExchangeRounds + round % kExchangeRounds) * kBlocks + block) * kChunkBytes;
}

// The warp that leaves the weights of this block's tiles in the exchange, and tells the others. It
// is at most two rounds ahead of every block's sums.
template <int kBlocks>
__device__ void SendWeights(ColumnsShared<kBlocks>& s, const Output& output) {
  const uint32_t lane = threadIdx.x % 32, block_of_cluster = ClusterRank();
  uint32_t round = 0;  // over all items
  for (ItemReader<kBlocks> items(s);;) {
    const Item item = items.Next();
    if (item.tokens == 0) return;
    const int32_t tiles = item.tiles();
    for (int32_t first = 0; first < tiles; first += kBlocks, ++round) {
      const uint32_t buffer = round % 2;
      s.weights_full[buffer].Wait(round / 2 % 2);
      if (round >= 2) s.summed[buffer].Wait(round / 2 % 2 ^ 1);
      if (lane == 0 && first + static_cast<int32_t>(block_of_cluster) < tiles) {
        BulkStore(ExchangePlace<kBlocks>(output, round, block_of_cluster), s.weights[buffer],
                  kChunkBytes);
        AwaitBulkStores();
        FenceAsync();  // here and not where they are loaded: it takes half a microsecond
        FenceCluster();
      }
      __syncwarp();
      if (lane == 0) s.weights_empty[buffer].Arrive();
      if (lane < kBlocks) s.weights_there[buffer][block_of_cluster].ArriveAt(lane);
    }
  }
}

// The warp that loads all blocks' weights. It arrives at each slot of a round, also where the last
// round has no tile: the sums, which free the slot, must not get ahead of what this warp waits for.
template <int kBlocks>
__device__ void ProduceWeights(ColumnsShared<kBlocks>& s, const Output& output) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t round = 0;  // over all items
  for (ItemReader<kBlocks> items(s);;) {
    const Item item = items.Next();
    if (item.tokens == 0) return;
    const int32_t tiles = item.tiles();
    for (int32_t first = 0; first < tiles; first += kBlocks, ++round) {
      for (int block = 0; block < kBlocks && lane == 0; ++block) {
        s.weights_there[round % 2][block].Wait(round / 2 % 2);
        s.slot_empty[block].Wait(round % 2 ^ 1);
        Mbarrier& full = s.slot_full[block];
        if (first + block < tiles) {
          full.ArriveExpect(kChunkBytes);
          BulkLoad(s.slots[block].weights, ExchangePlace<kBlocks>(output, round, block),
                   kChunkBytes, full);
        } else {
          full.Arrive();
        }
      }
      __syncwarp();
    }
  }
}

}  // namespace fathom::mla
