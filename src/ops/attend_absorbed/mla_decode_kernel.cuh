// The wide MLA decode kernel: what the warps that compute do, but for mla_decode_finish.cuh.
// mla_decode_kernel.cu launches it.
#pragma once

#include <cuda_bf16.h>

#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_absorbed/mla_decode_produce.cuh"
#include "ops/attend_absorbed/mla_decode_softmax.cuh"

namespace fathom::mla {

enum NamedBarrier : uint32_t {
  kFirstGroup = 1,   // the threads of consumer group 0
  kSecondGroup = 2,  // of group 1
  kEvenReady = 3,    // group 0 left the even tile's weights and maxima in shared memory
  kOddReady = 4,     // group 1 the odd tile's
  kItemDone = 5,     // both groups, at the end of an item
};

// One of the two warpgroups that compute. Group 0 scores the even tiles and sums up columns 0-255
// of the output, group 1 the odd tiles and columns 256-511; each leaves its tile's weights in
// shared memory for the other. What a thread holds of pairs r and r + 8 is indexed 0 and 1.
template <int kGroup, bool kFp8>
class Consumer {
 public:
  __device__ Consumer(Shared& s, const Step& step, const Output& output, float scale_log2)
      : s_(s),
        step_(step),
        output_(output),
        scale_log2_(scale_log2),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_(static_cast<int>(threadIdx.x % 128 / 32)),
        pair_(warp_ * 16 + lane_ / 4) {}

  __device__ void Run() {
    for (;;) {
      TakeItem();
      if (tiles_ == 0) return;
#pragma unroll
      for (int i = 0; i < 128; ++i) Out(i) = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) max_[i] = RunningMax(), sum_[i] = 0;
      for (int32_t tile = 0; tile < tiles_; tile += 2) {
        if (tile + kGroup < tiles_) Score(tile + kGroup);
        if constexpr (kGroup == 0) {
          EvenPair(tile);
        } else {
          OddPair(tile);
        }
      }
      Finish();
    }
  }

 private:
  // So many chunks of a query, the last ones, are read from registers: shared memory has enough to
  // do.
  static constexpr int kHeld = kFp8 ? 0 : 1;
  // A block of 512 threads may not have the registers of one product with N = 256.
  static constexpr int kPieces = kFp8 ? 2 : 1;
  static constexpr uint32_t kOwnBarrier = kGroup == 0 ? kFirstGroup : kSecondGroup;

  // Sum i of 128: as those of one product with N = 256.
  __device__ __forceinline__ float& Out(int i) {
    return out_[i / (128 / kPieces)][i % (128 / kPieces)];
  }

  // Waits for the next item; none: tiles_ = 0.
  __device__ void TakeItem() {
    s_.query_full.Wait(item_parity_);
    const Item& item = s_.item[item_parity_];
    item_parity_ ^= 1;
    tiles_ = 0;
    if (item.tokens == 0) return;
    tiles_ = item.tiles();
    position_ = item.position - item.begin();
    end_ = position_ + item.tokens;
    HoldQuery();
    if (tiles_ <= kGroup) FreeQuery();
  }

  // Tiles `tile`, whose scores are there, and, if the item has it, `tile` + 1, as group 0 sees
  // them.
  __device__ void EvenPair(int32_t tile) {
    uint32_t weights[16];
    float scale[2];
    Softmax(tile, scale, weights);
    LeaveWeights(weights, scale);
    NamedBarrierArrive(kEvenReady, 256);
    Rescale(scale);
    WgmmaFence();
    Add(0, weights);
    AwaitSums();
    Free(0);
    if (tile + 1 < tiles_) {
      NamedBarrierSync(kOddReady, 256);
      TakeScale(1, scale);
      s_.full[1][0].Wait(parity_[1]);  // it is; but this thread must see it, too
      Rescale(scale);
      WgmmaFence();
      AddOther(1);
      AwaitSums();
      Free(1);
    }
  }

  // The same as group 1 sees them: the even tile's values are added while the odd tile's weights
  // are computed.
  __device__ void OddPair(int32_t tile) {
    NamedBarrierSync(kEvenReady, 256);
    float scale[2];
    uint32_t weights[16];
    TakeScale(0, scale);
    s_.full[0][1].Wait(parity_[0]);
    Rescale(scale);
    if (tile + 1 < tiles_) {
      WgmmaFence();
      AddOther(0);
      Softmax(tile + 1, scale, weights);
      LeaveWeights(weights, scale);
      NamedBarrierArrive(kOddReady, 256);
      AwaitSums();
      Free(0);
      Rescale(scale);
      WgmmaFence();
      Add(1, weights);
      AwaitSums();
      Free(1);
    } else {
      WgmmaFence();
      AddOther(0);
      AwaitSums();
      Free(0);
    }
  }

  // Takes the last chunks of the query, as A of a product.
  __device__ void HoldQuery() {
#pragma unroll
    for (int i = 0; i < 4 * kHeld; ++i) {
      LoadFragment(SharedAddress(s_.query[kChunks - kHeld + i / 4]), i % 4, query_ + 4 * i);
    }
  }

  // scores_ = Q K^T of a tile of this group, before scaling.
  __device__ void Score(int32_t tile) {
    const uint32_t parity = parity_[kGroup];
    const int32_t past = end_ - tile * kKeys;
    if (past < kKeys) {
      s_.full[kGroup][0].Wait(parity);
      s_.full[kGroup][1].Wait(parity);
      ClearKeys(past);
    }
    const uint32_t query = WgmmaOperand(SharedAddress(s_.query));
    const uint32_t keys = WgmmaOperand(SharedAddress(s_.keys[kGroup]));
    s_.full[kGroup][kGroup].Wait(parity);  // the half that this group frees, and so the first
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk)
      ScoreChunk(query, keys, 4 * kGroup + chunk, /*add=*/chunk > 0);
    s_.full[kGroup][1 - kGroup].Wait(parity);
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) ScoreChunk(query, keys, 4 - 4 * kGroup + chunk, true);
    ScoreChunk(query, keys, kRopeChunk, true);
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaHold(scores_);
    if (tile + 2 >= tiles_) FreeQuery();
  }
  __device__ void ScoreChunk(uint32_t query, uint32_t keys, int chunk, bool add) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t offset = (chunk * kChunkBytes + k * 32) / 16;
      const int held = chunk - (kChunks - kHeld);
      if (held >= 0) {
        WgmmaBf16<64>::Add<Major::kK>(scores_, query_ + 16 * held + 4 * k, keys + offset, true);
      } else {
        WgmmaBf16<64>::Add<Major::kK, Major::kK>(scores_, query + offset, keys + offset,
                                                 add || k > 0);
      }
    }
  }

  // Zeroes the values of positions that no token of the item sees: a page's tail may hold anything,
  // and 0 x NaN is NaN.
  __device__ void ClearKeys(int32_t first) {
    for (int i = static_cast<int>(threadIdx.x % 128); i < (kKeys - first) * 64; i += 128) {
      const int key = first + i / 64, chunk = i % 64 / 8, part = i % 8;
      *reinterpret_cast<uint4*>(s_.keys[kGroup][chunk] + key * 128 + part * 16) =
          make_uint4(0, 0, 0, 0);
    }
    FenceAsyncShared();
    NamedBarrierSync(kOwnBarrier, 128);
  }

  // Turns scores_ into weights; moves max_ and sum_ on.
  __device__ void Softmax(int32_t tile, float (&scale)[2], uint32_t (&weights)[16]) {
    if ((tile + 1) * kKeys > position_ + 1) {
      const int32_t seen[2] = {position_ + pair_ / step_.heads,
                               position_ + (pair_ + 8) / step_.heads};
      MaskScores(scores_, tile * kKeys, seen);
    }
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scale[i] = max_[i].Next(BestScore(scores_, i, scale_log2_));
      base[i] = max_[i].base();
      sum_[i] = __fmul_rn(sum_[i], scale[i]);
    }
    MakeWeights(scores_, scale_log2_, base, weights);
    AddWeights(weights, sum_);
  }

  // Leaves this tile's weights, maxima and scales for the other group, where the tile's rotated
  // keys were: all warps of this group must have scored first.
  __device__ void LeaveWeights(const uint32_t (&weights)[16], const float (&scale)[2]) {
    NamedBarrierSync(kOwnBarrier, 128);
    const uint32_t left = SharedAddress(s_.keys[kGroup][kRopeChunk]);
#pragma unroll
    for (int k = 0; k < 4; ++k) StoreFragment(left, k, weights + 4 * k);
    if (lane_ % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s_.max[kGroup][pair_ + 8 * i] = max_[i].value;
        s_.scale[kGroup][pair_ + 8 * i] = scale[i];
      }
    }
    FenceAsyncShared();
  }

  // After the other group's tile: its maxima are the running ones.
  __device__ void TakeScale(int tile, float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max_[i].value = s_.max[tile][pair_ + 8 * i];
      scale[i] = s_.scale[tile][pair_ + 8 * i];
      sum_[i] = __fmul_rn(sum_[i], scale[i]);
    }
  }

  // Most tiles leave all maxima as they are: multiplying by 1 is left out.
  __device__ void Rescale(const float (&scale)[2]) {
    if (!__any_sync(kAllLanes, scale[0] != 1 || scale[1] != 1)) return;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      Out(4 * j) *= scale[0];
      Out(4 * j + 1) *= scale[0];
      Out(4 * j + 2) *= scale[1];
      Out(4 * j + 3) *= scale[1];
    }
  }

  // out_ += a tile's weights x its values, of this group's columns.
  __device__ void Add(int buffer, const uint32_t (&weights)[16]) {
    const uint32_t values = WgmmaOperand(SharedAddress(s_.keys[buffer][4 * kGroup]), kChunkBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        WgmmaBf16<256 / kPieces>::template Add<Major::kMn>(
            out_[n], weights + 4 * k, values + (n * 4 / kPieces * kChunkBytes + k * 2048) / 16,
            true);
      }
    }
    WgmmaCommit();
  }
  // The same of the other group's tile, whose weights are in shared memory.
  __device__ void AddOther(int buffer) {
    const uint32_t left = WgmmaOperand(SharedAddress(s_.keys[buffer][kRopeChunk]));
    const uint32_t values = WgmmaOperand(SharedAddress(s_.keys[buffer][4 * kGroup]), kChunkBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        WgmmaBf16<256 / kPieces>::template Add<Major::kK, Major::kMn>(
            out_[n], left + k * 32 / 16, values + (n * 4 / kPieces * kChunkBytes + k * 2048) / 16,
            true);
      }
    }
    WgmmaCommit();
  }
  __device__ void AwaitSums() {
    WgmmaWait<0>();
#pragma unroll
    for (int n = 0; n < kPieces; ++n) WgmmaHold(out_[n]);
  }

  // This warp needs its half of the buffer no more.
  __device__ void Free(int buffer) {
    __syncwarp();
    if (lane_ == 0) s_.empty[buffer][kGroup].Arrive();
    parity_[buffer] ^= 1;
  }
  __device__ void FreeQuery() {
    __syncwarp();
    if (lane_ == 0) s_.query_empty.Arrive();
  }

  // Of mla_decode_finish.cuh: writes the item's result, or its part of it.
  __device__ void Finish();
  Shared& s_;
  const Step& step_;
  const Output& output_;
  const float scale_log2_;
  const int lane_, warp_;
  const int pair_;  // of the 64; the other is 8 further
  // Of the item: tiles; where its first token is, and where its last one ends, in its part.
  int32_t tiles_, position_, end_;
  uint32_t item_parity_ = 0, parity_[2] = {0, 0};  // of the queries, of each buffer
  uint32_t query_[16 * kHeld];                     // [chunk][k][4]
  float out_[kPieces][128 / kPieces], scores_[32], sum_[2];
  RunningMax max_[2];
};

}  // namespace fathom::mla
