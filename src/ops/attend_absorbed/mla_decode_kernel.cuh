// The MLA decode kernel: what its warps do. mla_decode_kernel.cu launches it.
#pragma once

#include <cuda_bf16.h>

#include "cuda/fence.h"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_absorbed/mla_decode_widen.cuh"
#include "ops/attend_absorbed/mla_decode_work.cuh"

namespace fathom::mla {

inline constexpr int kChunks = 9;         // of 64 values: 8 of the latent, 1 of the rotated key
inline constexpr int kChunkBytes = 8192;  // 64 rows of 128 bytes, swizzled
inline constexpr int kRopeChunk = 8;
// So many chunks of a query, the last ones, are read from registers: shared memory has enough to
// do.
inline constexpr int kHeldChunks = 1;

enum NamedBarrier : uint32_t {
  kFirstGroup = 1,   // the threads of consumer group 0
  kSecondGroup = 2,  // of group 1
  kEvenReady = 3,    // group 0 left the even tile's weights and maxima in shared memory
  kOddReady = 4,     // group 1 the odd tile's
  kItemDone = 5,     // both groups, at the end of an item
};

// Tiles with an even number in their item lie in buffer 0, the others in buffer 1. The weights that
// the owner of a tile leaves for the other group overwrite its rotated keys, so those are freed
// with the half that the other group reads.
struct Shared {
  alignas(1024) uint8_t query[kChunks][kChunkBytes];
  alignas(1024) uint8_t keys[2][kChunks][kChunkBytes];
  float max[2][kRows];     // running maxima after the even and the odd tile, in units of log2
  float scale[2][kRows];   // what they shrink earlier sums by
  float sum[2][2][kRows];  // [parity of the item][group]: its share of the sum of weights
  Item item;
  Mbarrier query_full, query_empty;  // `item` goes with the query
  Mbarrier full[2][2];               // [buffer][half]: chunks 0-3, chunks 4-7
  Mbarrier empty[2][2];
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
    raw.ArriveExpect(kRawHalfBytes + (half == 0 ? kKeys * 4 : 0));
    TmaLoad4(s.keys[buffer][4 * half + kRawChunk], &maps.latent, raw, policy, 0, 0, 2 * half, page);
    if (half == 0) TmaLoad2(s.widen.scales[buffer], &maps.scales, raw, policy, 0, page);
    full.ArriveExpect(rope ? kChunkBytes : 0);
  } else {
    full.ArriveExpect((rope ? 5 : 4) * kChunkBytes);
    TmaLoad4(s.keys[buffer][4 * half], &maps.latent, full, policy, 0, 0, 4 * half, page);
  }
  if (rope) TmaLoad4(s.keys[buffer][kRopeChunk], &maps.rope, full, policy, 0, 0, 0, page);
}

// The producer: one warp feeds queries and tiles to the consumers, in the order of the items.
template <bool kFp8>
__device__ void Produce(Shared& s, const Maps& maps, const Step& step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t keep = EvictNormal(), once = EvictFirst();
  ItemWalk walk(step);
  uint32_t query_parity = 0, parities = 0;  // bit b: of buffer b
  for (int32_t index = static_cast<int32_t>(blockIdx.x);;
       index += static_cast<int32_t>(gridDim.x)) {
    const Item item = walk.Find(index);
    if (lane == 0) {
      s.query_empty.Wait(query_parity ^ 1);
      s.item = item;
      if (item.tokens == 0) {
        s.query_full.Arrive();
      } else {
        const int32_t boxes = (item.rows(step) + kQueryBox - 1) / kQueryBox;
        const int32_t row = item.token * step.heads + item.head_block * kRows;
        s.query_full.ArriveExpect(boxes * kQueryBox * 128 * kChunks);
        for (int box = 0; box < boxes; ++box) {
          const int32_t at = box * kQueryBox;
          for (int chunk = 0; chunk < kRopeChunk; ++chunk) {
            TmaLoad3(s.query[chunk] + at * 128, &maps.q_latent, s.query_full, keep, 0, row + at,
                     chunk);
          }
          TmaLoad2(s.query[kRopeChunk] + at * 128, &maps.q_rope, s.query_full, keep, 0, row + at);
        }
      }
    }
    query_parity ^= 1;
    if (item.tokens == 0) return;

    const int32_t tiles = item.tiles();
    const int32_t* table =
        step.page_table + int64_t{item.slot} * step.max_pages + item.begin() / kKeys;
    int32_t pages = 0;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      if (tile % 32 == 0) pages = tile + lane < tiles ? table[tile + lane] : 0;
      const int32_t page = __shfl_sync(kAllLanes, pages, tile % 32);
      const int buffer = tile % 2;
      if (lane == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          s.empty[buffer][half].Wait(((parities >> buffer) & 1) ^ 1);
          LoadHalf<kFp8>(s, maps, buffer, half, page, once);
        }
      }
      parities ^= 1u << buffer;
    }
  }
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// One of the two warpgroups that compute. Group 0 scores the even tiles and sums up columns 0-255
// of the output, group 1 the odd tiles and columns 256-511; each leaves its tile's weights in
// shared memory for the other. What a thread holds of rows r and r + 8 is indexed 0 and 1.
template <int kGroup>
class Consumer {
 public:
  __device__ Consumer(Shared& s, const Step& step, const Output& output, float scale_log2)
      : s_(s),
        step_(step),
        output_(output),
        scale_log2_(scale_log2),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_(static_cast<int>(threadIdx.x % 128 / 32)),
        row_(warp_ * 16 + lane_ / 4) {}

  __device__ void Run() {
    for (;; item_parity_ ^= 1) {
      s_.query_full.Wait(item_parity_);
      item_ = s_.item;
      if (item_.tokens == 0) return;
      tiles_ = item_.tiles();
      HoldQuery();
#pragma unroll
      for (int i = 0; i < 128; ++i) out_[i] = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) max_[i] = -INFINITY, sum_[i] = 0;
      for (int32_t tile = 0; tile < tiles_; tile += 2) {
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
  static constexpr int kOther = 1 - kGroup;
  static constexpr uint32_t kOwnBarrier = kGroup == 0 ? kFirstGroup : kSecondGroup;

  // Tiles `tile` and, if the item has it, `tile` + 1, as group 0 sees them.
  __device__ void EvenPair(int32_t tile) {
    const bool odd = tile + 1 < tiles_;
    Score(tile);
    if (tile + 2 >= tiles_) FreeQuery();
    uint32_t weights[16];
    float scale[2];
    Softmax(tile, scale, weights);
    LeaveWeights(weights, scale);
    NamedBarrierArrive(kEvenReady, 256);
    Rescale(scale);
    WgmmaFence();
    AddOwn(weights);
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaHold(out_);
    Free(0);
    if (odd) {
      NamedBarrierSync(kOddReady, 256);
      TakeScale(1, scale);
      Rescale(scale);
      WgmmaFence();
      AddOther();
      WgmmaCommit();
      WgmmaWait<0>();
      WgmmaHold(out_);
      Free(1);
    }
  }

  // The same as group 1 sees them: the even tile's values are added while the odd tile's weights
  // are computed.
  __device__ void OddPair(int32_t tile) {
    const bool odd = tile + 1 < tiles_;
    if (odd) Score(tile + 1);
    if (tile + 2 >= tiles_) FreeQuery();
    NamedBarrierSync(kEvenReady, 256);
    float scale[2];
    TakeScale(0, scale);
    Rescale(scale);
    WgmmaFence();
    AddOther();
    WgmmaCommit();
    uint32_t weights[16];
    if (odd) {
      Softmax(tile + 1, scale, weights);
      LeaveWeights(weights, scale);
      NamedBarrierArrive(kOddReady, 256);
    }
    WgmmaWait<0>();
    WgmmaHold(out_);
    Free(0);
    if (odd) {
      Rescale(scale);
      WgmmaFence();
      AddOwn(weights);
      WgmmaCommit();
      WgmmaWait<0>();
      WgmmaHold(out_);
      Free(1);
    }
  }

  // Takes the last chunks of the query, as A of a product.
  __device__ void HoldQuery() {
    const int row = warp_ * 16 + lane_ % 16;
#pragma unroll
    for (int i = 0; i < 4 * kHeldChunks; ++i) {
      const int chunk = kChunks - kHeldChunks + i / 4;
      const uint32_t address = SharedAddress(s_.query[chunk]) + row * 128 +
                               (((2 * (i % 4) + lane_ / 16) ^ (row % 8)) * 16);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(query_[4 * i]), "=r"(query_[4 * i + 1]), "=r"(query_[4 * i + 2]),
                     "=r"(query_[4 * i + 3])
                   : "r"(address)
                   : "memory");
    }
  }

  // scores_ = Q K^T of a tile of this group, before scaling.
  __device__ void Score(int32_t tile) {
    const uint32_t parity = parity_[kGroup];
    const int32_t past = item_.last_position() + 1 - item_.begin() - tile * kKeys;
    if (past < kKeys) {
      s_.full[kGroup][0].Wait(parity);
      s_.full[kGroup][1].Wait(parity);
      ClearKeys(past);
    }
    const uint64_t query = WgmmaOperand(SharedAddress(s_.query));
    const uint64_t keys = WgmmaOperand(SharedAddress(s_.keys[kGroup]));
    s_.full[kGroup][0].Wait(parity);
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) ScoreChunk(query, keys, chunk);
    if constexpr (RopeHalf(kGroup) == 0) ScoreChunk(query, keys, kRopeChunk);
    s_.full[kGroup][1].Wait(parity);
#pragma unroll
    for (int chunk = 4; chunk < 8; ++chunk) ScoreChunk(query, keys, chunk);
    if constexpr (RopeHalf(kGroup) == 1) ScoreChunk(query, keys, kRopeChunk);
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaHold(scores_);
  }
  __device__ void ScoreChunk(uint64_t query, uint64_t keys, int chunk) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t offset = (chunk * kChunkBytes + k * 32) / 16;
      const int held = chunk - (kChunks - kHeldChunks);
      if (held >= 0) {
        WgmmaBf16<64>::Add<Major::kK>(scores_, query_ + 16 * held + 4 * k, keys + offset, true);
      } else {
        WgmmaBf16<64>::Add<Major::kK, Major::kK>(scores_, query + offset, keys + offset,
                                                 chunk > 0 || k > 0);
      }
    }
  }

  // Zeroes the values of positions that no token of the item sees: a page's tail may hold anything,
  // and 0 x NaN is NaN.
  __device__ void ClearKeys(int32_t first) {
    for (int i = static_cast<int>(threadIdx.x % 128); i < (kKeys - first) * 64; i += 128) {
      const int row = first + i / 64, chunk = i % 64 / 8, part = i % 8;
      *reinterpret_cast<uint4*>(s_.keys[kGroup][chunk] + row * 128 + part * 16) =
          make_uint4(0, 0, 0, 0);
    }
    FenceAsyncShared();
    NamedBarrierSync(kOwnBarrier, 128);
  }

  // Turns scores_ into weights, packed as A of a product; moves max_ and sum_ on.
  __device__ void Softmax(int32_t tile, float (&scale)[2], uint32_t (&weights)[16]) {
    const int32_t begin = item_.begin() + tile * kKeys;
    if (begin + kKeys > item_.position + 1) Mask(begin);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = scores_[2 * i];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        best = fmaxf(best, fmaxf(scores_[4 * j + 2 * i], scores_[4 * j + 2 * i + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
      const float max = fmaxf(max_[i], best * scale_log2_);
      const float base = max == -INFINITY ? 0 : max;  // nothing seen yet: all weights are 0
      scale[i] = Exp2(max_[i] - base);
      max_[i] = max;
      sum_[i] *= scale[i];
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& score = scores_[4 * j + 2 * i + k];
          score = Exp2(fmaf(score, scale_log2_, -base));
          sum += score;
        }
      }
      sum_[i] += sum;
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(scores_[2 * j], scores_[2 * j + 1]);
      weights[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  __device__ void Mask(int32_t begin) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t position = item_.position + (row_ + 8 * i) / step_.heads;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (begin + 8 * j + 2 * (lane_ % 4) + k > position) {
            scores_[4 * j + 2 * i + k] = -INFINITY;
          }
        }
      }
    }
  }

  // Leaves this tile's weights, maxima and scales for the other group, where the tile's rotated
  // keys were: all warps of this group must have scored first.
  __device__ void LeaveWeights(const uint32_t (&weights)[16], const float (&scale)[2]) {
    NamedBarrierSync(kOwnBarrier, 128);
    const int row = warp_ * 16 + lane_ % 16;
    const uint32_t line = SharedAddress(s_.keys[kGroup][kRopeChunk]) + row * 128;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t address = line + (((2 * j + lane_ / 16) ^ (row % 8)) * 16);
      asm volatile(
          "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
          "r"(weights[4 * j]), "r"(weights[4 * j + 1]), "r"(weights[4 * j + 2]),
          "r"(weights[4 * j + 3])
          : "memory");
    }
    if (lane_ % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s_.max[kGroup][row_ + 8 * i] = max_[i];
        s_.scale[kGroup][row_ + 8 * i] = scale[i];
      }
    }
    FenceAsyncShared();
  }

  // After the other group's tile: its maxima are the running ones.
  __device__ void TakeScale(int tile, float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max_[i] = s_.max[tile][row_ + 8 * i];
      scale[i] = s_.scale[tile][row_ + 8 * i];
      sum_[i] *= scale[i];
    }
  }

  // Most tiles leave all maxima as they are: multiplying by 1 is left out.
  __device__ void Rescale(const float (&scale)[2]) {
    if (!__any_sync(kAllLanes, scale[0] != 1 || scale[1] != 1)) return;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      out_[4 * j] *= scale[0];
      out_[4 * j + 1] *= scale[0];
      out_[4 * j + 2] *= scale[1];
      out_[4 * j + 3] *= scale[1];
    }
  }

  // out_ += the own tile's weights x its values, of this group's columns.
  __device__ void AddOwn(const uint32_t (&weights)[16]) {
    const uint64_t values = WgmmaOperand(SharedAddress(s_.keys[kGroup][4 * kGroup]), kChunkBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaBf16<256>::Add<Major::kMn>(out_, weights + 4 * k, values + k * 2048 / 16, true);
    }
  }
  // The same for the other group's tile.
  __device__ void AddOther() {
    s_.full[kOther][kGroup].Wait(parity_[kOther]);  // it is; but this thread must see it, too
    const uint64_t weights = WgmmaOperand(SharedAddress(s_.keys[kOther][kRopeChunk]));
    const uint64_t values = WgmmaOperand(SharedAddress(s_.keys[kOther][4 * kGroup]), kChunkBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaBf16<256>::Add<Major::kK, Major::kMn>(out_, weights + k * 32 / 16,
                                                 values + k * 2048 / 16, true);
    }
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

  // Writes the item's result, or its part of it.
  __device__ void Finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] += __shfl_xor_sync(kAllLanes, sum_[i], 1);
      sum_[i] += __shfl_xor_sync(kAllLanes, sum_[i], 2);
      if (lane_ % 4 == 0) s_.sum[item_parity_][kGroup][row_ + 8 * i] = sum_[i];
    }
    NamedBarrierSync(kItemDone, 256);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t row = row_ + 8 * i;
      if (row >= item_.rows(step_)) continue;
      const int32_t pair = item_.head_block * kRows + row;
      const int32_t offset = pair / step_.heads, head = pair % step_.heads;
      const int32_t token = item_.token + offset, position = item_.position + offset;
      if (position < item_.begin()) continue;  // a later token of the row sees this part
      const float sum = s_.sum[item_parity_][0][row] + s_.sum[item_parity_][1][row];
      const int column = 256 * kGroup + 2 * (lane_ % 4);
      if (position < item_.part_tokens) {
        WriteOut(i, 1 / sum,
                 output_.out + (int64_t{token} * step_.heads + head) * kLatent + column);
      } else {
        const int64_t at = (int64_t{token} * step_.max_splits + item_.part) * step_.heads + head;
        WritePartial(i, output_.partial + at * kLatent + column);
        if (kGroup == 0 && lane_ % 4 == 0) output_.state[at] = make_float2(max_[i], sum);
      }
    }
  }
  __device__ void WriteOut(int i, float factor, __nv_bfloat16* to) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) =
          __floats2bfloat162_rn(out_[4 * j + 2 * i] * factor, out_[4 * j + 2 * i + 1] * factor);
    }
  }
  __device__ void WritePartial(int i, float* to) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      *reinterpret_cast<float2*>(to + 8 * j) =
          make_float2(out_[4 * j + 2 * i], out_[4 * j + 2 * i + 1]);
    }
  }

  Shared& s_;
  const Step& step_;
  const Output& output_;
  const float scale_log2_;
  const int lane_, warp_;
  const int row_;  // of the 64; the other is 8 further
  Item item_;
  int32_t tiles_;
  uint32_t item_parity_ = 0, parity_[2] = {0, 0};  // of the queries, of each buffer
  uint32_t query_[16 * kHeldChunks];               // [chunk][k][4]
  float out_[128], scores_[32], max_[2], sum_[2];
};

}  // namespace fathom::mla
