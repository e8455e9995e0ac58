// Tiles of an FP8 cache in the columns kernel: the warps that make BF16 of codes, of those that the
// block scores and of its columns of all, whichever come first.
#pragma once

#include "ops/attend_absorbed/mla_decode_columns_produce.cuh"

namespace fathom::mla {

// A chunk of a slot's values. The first positions are written where there are no codes.
__device__ __forceinline__ void WidenChunk(uint8_t* chunk, int lane) {
  constexpr int kTurns = kKeys / 8;  // of eight positions: four lanes have one's codes
  const int of_eight = lane / 4, vector = lane % 4;
  float scales[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    scales[i] = reinterpret_cast<const float*>(chunk)[8 * i + of_eight];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 codes[kTurns / 2];
#pragma unroll
    for (int i = 0; i < kTurns / 2; ++i) {
      codes[i] = reinterpret_cast<const uint4*>(chunk +
                                                kSlotCodes)[(half * kTurns / 2 + i) * kWarp + lane];
    }
    __syncwarp();  // values go where codes and scales are
#pragma unroll
    for (int i = 0; i < kTurns / 2; ++i) {
      const int turn = half * kTurns / 2 + i;
      uint4* line = reinterpret_cast<uint4*>(chunk + (8 * turn + of_eight) * 128);
      PositionFactor(scales[turn])
          .Widen(codes[i], &line[(2 * vector) ^ of_eight], &line[(2 * vector + 1) ^ of_eight]);
    }
  }
}

template <int kBlocks>
__device__ void WidenColumns(ColumnsShared<kBlocks>& s, int warp) {
  using S = ColumnsShared<kBlocks>;
  static_assert(kBlocks * S::kValueChunks == kColumnsWidenWarps);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int slot = warp / S::kValueChunks, chunk = warp % S::kValueChunks;
  uint32_t keys_parity = 0, slot_parity = 0;
  const auto announce = [&](Mbarrier& full) {
    FenceAsyncShared();
    __syncwarp();
    if (lane == 0) full.Arrive();
  };
  // What is there may still have to be seen by this thread.
  const auto is_there = [](Mbarrier& codes, uint32_t parity) {
    if (!__any_sync(kAllLanes, codes.Test(parity))) return false;
    codes.Wait(parity);
    return true;
  };
  for (ItemReader<kBlocks> items(s);;) {
    const Item item = items.Next();
    if (item.tokens == 0) return;
    const int32_t tiles = item.tiles();
    int32_t key = static_cast<int32_t>(ClusterRank()), value = slot;
    int half = 0;
    while (key < tiles || value < tiles) {
      if (key < tiles && is_there(s.key_codes[half], keys_parity)) {
        WidenHalf<8, kColumnsWidenWarps>(s.keys[4 * half], s.key_scales, warp, lane);
        announce(s.keys_full[half]);
        if (half == 1) key += kBlocks, keys_parity ^= 1;
        half ^= 1;
      } else if (value < tiles && is_there(s.slot_codes[slot], slot_parity)) {
        WidenChunk(s.slots[slot].values[chunk], lane);
        announce(s.slot_full[slot]);
        value += kBlocks, slot_parity ^= 1;
      }
    }
  }
}

}  // namespace fathom::mla
