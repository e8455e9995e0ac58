// MLA decode for at most 16 heads: positions are M of wgmma and heads N, so that nothing is
// computed for heads that are not there. What the warps that compute do; mla_decode_narrow.cu
// launches it.
//
// The order of additions does not depend on who shares the step, nor on how the work is cut. A
// context is a sequence of groups of 128 positions: two warpgroups sum up 64 each, and the two are
// merged. Groups are folded in order into sections of a power of two of them, and sections in order
// into the result. A block that has all groups of a section, or all sections from the first on,
// folds them as it goes; what different blocks computed is folded by CombineNarrow, with the same
// arithmetic.
#pragma once

#include <cuda_bf16.h>

#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_absorbed/mla_decode_narrow_produce.cuh"

namespace fathom::mla {

inline constexpr int kPartValues = kNarrowHeads * kLatent;

enum NarrowBarrier : uint32_t {
  kNarrowFirst = 1,    // the threads of consumer group 0
  kNarrowSecond = 2,   // of group 1
  kExchangeFree = 3,   // both: nobody reads the exchange any more
  kExchangeReady = 4,  // both: it is written
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

// One of the two warpgroups that compute. A thread holds, of each product with N = 16, the columns
// (heads) 8j + 2 (lane % 4) + e at index 4j + e, of tile row (position or value) 16 warp + lane /
// 4, and of tile row + 8 at index 4j + 2 + e. What it holds by head is indexed 2j + e.
template <int kGroup, bool kFp8>
class NarrowConsumer {
 public:
  __device__ NarrowConsumer(NarrowShared& s, const NarrowStep& step, const NarrowOutput& output,
                            float scale_log2)
      : s_(s),
        step_(step),
        output_(output),
        scale_log2_(scale_log2),
        thread_(static_cast<int>(threadIdx.x % 128)),
        lane_(thread_ % 32),
        warp_(thread_ / 32) {}

  __device__ void Run() {
    for (uint32_t parity = 0;; parity ^= 1) {
      s_.query_full.Wait(parity);
      item_ = s_.item;
      if (item_.token < 0) return;
      const int32_t length = item_.length(), section_tokens = kGroupTokens << step_.section_log2;
      running_.Clear();
      for (int32_t begin = 0; begin < length;) {
        section_.Clear();
        do {
          const int32_t left = length - begin;
          Group(left, left <= kGroupTokens);
          begin += kGroupTokens;
        } while (begin < length && (begin & (section_tokens - 1)) != 0);
        FoldSection();
      }
      Write();
    }
  }

 private:
  static constexpr uint32_t kOwnBarrier = kGroup == 0 ? kNarrowFirst : kNarrowSecond;

  // Values 256 kGroup and up of a result: state by head, values as out_ has them.
  struct Values {
    Running state[4];
    float value[32];

    __device__ void Clear() {
#pragma unroll
      for (int c = 0; c < 4; ++c) state[c] = Running();
#pragma unroll
      for (int i = 0; i < 32; ++i) value[i] = 0;
    }
  };
  static __device__ constexpr int Head(int i) {
    return i % 8 / 4 * 2 + i % 2;
  }

  // Up to 128 positions, of which `left` are in the item; perhaps its last.
  __device__ void Group(int32_t left, bool last) {
    const int32_t seen = left - kGroup * kKeys;
    if (seen > 0) {
      Tile(seen, last);
    } else {
      if (last) FreeQuery();
#pragma unroll
      for (int c = 0; c < 4; ++c) max_[c] = -INFINITY, sum_[c] = 0;
#pragma unroll
      for (int i = 0; i < 64; ++i) out_[i / 8][i % 8] = 0;
    }
    Merge();
  }

  // out_ = weights x values of 64 positions, of which `seen` or all are seen.
  __device__ void Tile(int32_t seen, bool last) {
    Score(seen);
    if (last) FreeQuery();
    if (seen < kKeys) Mask(seen);
    LeaveWeights();
    WgmmaFence();
    const uint64_t values = WgmmaOperand(SharedAddress(s_.keys[kGroup]), kTileChunkBytes);
    const uint64_t weights = WgmmaOperand(SharedAddress(s_.weights[kGroup]));
#pragma unroll
    for (int chunk = 0; chunk < 8; ++chunk) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaBf16<16>::Add<Major::kMn, Major::kK>(
            out_[chunk], values + (chunk * kTileChunkBytes + k * 2048) / 16, weights + k * 2,
            k > 0);
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
#pragma unroll
    for (int chunk = 0; chunk < 8; ++chunk) WgmmaHold(out_[chunk]);
    __syncwarp();
    if (lane_ == 0) s_.empty[kGroup].Arrive();
    parity_ ^= 1;
  }

  // This warpgroup's tile of an FP8 cache.
  __device__ void Widen() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      s_.widen.raw[kGroup][half].Wait(parity_);
      WidenHalf<8, 4>(s_.keys[kGroup][4 * half], s_.widen.scales[kGroup], warp_);
    }
    FenceAsyncShared();
    NamedBarrierSync(kOwnBarrier, 128);
  }

  // scores_ = K Q^T, before scaling.
  __device__ void Score(int32_t seen) {
    if constexpr (kFp8) Widen();
    if (seen < kKeys) {
      s_.full[kGroup][0].Wait(parity_);
      s_.full[kGroup][1].Wait(parity_);
      ClearKeys(seen);
    }
    const uint64_t keys = WgmmaOperand(SharedAddress(s_.keys[kGroup]));
    const uint64_t query = WgmmaOperand(SharedAddress(s_.query));
    s_.full[kGroup][0].Wait(parity_);
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < kNarrowChunks; ++chunk) {
      if (chunk == 4) {
        s_.full[kGroup][1].Wait(parity_);
        WgmmaFence();  // after a loop that diverges the compiler would serialise products without
                       // it
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaBf16<16>::Add<Major::kK, Major::kK>(
            scores_, keys + (chunk * kTileChunkBytes + k * 32) / 16,
            query + (chunk * kHeadChunkBytes + k * 32) / 16, chunk > 0 || k > 0);
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaHold(scores_);
  }

  __device__ void FreeQuery() {
    __syncwarp();
    if (lane_ == 0) s_.query_empty.Arrive();
  }

  // Zeroes the values of positions that nobody sees: a page's tail may hold anything, and 0 x NaN
  // is NaN.
  __device__ void ClearKeys(int32_t seen) {
    for (int i = thread_; i < (kKeys - seen) * 64; i += 128) {
      const int tile_row = seen + i / 64, chunk = i % 64 / 8, part = i % 8;
      *reinterpret_cast<uint4*>(s_.keys[kGroup][chunk] + tile_row * 128 + part * 16) =
          make_uint4(0, 0, 0, 0);
    }
    FenceAsyncShared();
    NamedBarrierSync(kOwnBarrier, 128);
  }
  __device__ void Mask(int32_t seen) {
    const int tile_row = warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (tile_row + (i % 4 / 2) * 8 >= seen) scores_[i] = -INFINITY;
    }
  }

  // Turns scores_ into weights in shared memory; sets max_ and sum_.
  __device__ void LeaveWeights() {
    float best[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      best[c] = fmaxf(scores_[4 * (c / 2) + c % 2], scores_[4 * (c / 2) + 2 + c % 2]);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        best[c] = fmaxf(best[c], __shfl_xor_sync(kAllLanes, best[c], distance));
      }
    }
    const int head = 2 * (lane_ % 4);
    if (lane_ < 4) {
#pragma unroll
      for (int c = 0; c < 4; ++c) s_.best[kGroup][warp_][8 * (c / 2) + head + c % 2] = best[c];
    }
    NamedBarrierSync(kOwnBarrier, 128);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = 8 * (c / 2) + head + c % 2;
#pragma unroll
      for (int w = 0; w < 4; ++w) best[c] = fmaxf(best[c], s_.best[kGroup][w][column]);
      max_[c] = best[c] * scale_log2_;
      const float base = max_[c] == -INFINITY ? 0 : max_[c];
      float& low = scores_[4 * (c / 2) + c % 2];
      float& high = scores_[4 * (c / 2) + 2 + c % 2];
      low = Exp2(fmaf(low, scale_log2_, -base));
      high = Exp2(fmaf(high, scale_log2_, -base));
      sum_[c] = low + high;
    }
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(scores_[2 * i], scores_[2 * i + 1]);
      packed[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    // Matrix i of four: heads 8 (i / 2) and up, positions 16 warp + 8 (i % 2) and up; transposed.
    const int tile_row = lane_ / 16 * 8 + lane_ % 8, chunk = 2 * warp_ + lane_ / 8 % 2;
    const uint32_t address =
        SharedAddress(s_.weights[kGroup]) + tile_row * 128 + ((chunk ^ (tile_row % 8)) * 16);
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
        : "memory");
    FenceAsyncShared();
    NamedBarrierSync(kOwnBarrier, 128);
  }

  // Merges what both warpgroups made of a group of positions, and folds it into the section.
  // Warpgroup g does so for values 256 g and up.
  __device__ void Merge() {
    NamedBarrierSync(kExchangeFree, 256);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s_.exchange[kGroup][i][thread_] = out_[4 * (1 - kGroup) + i / 8][i % 8];
    }
    const int head = 2 * (lane_ % 4);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        sum_[c] += __shfl_xor_sync(kAllLanes, sum_[c], distance);
      }
      const int column = 8 * (c / 2) + head + c % 2;
      if (lane_ < 4) {
        s_.sum[kGroup][warp_][column] = sum_[c];
        if (warp_ == 0) s_.max[kGroup][column] = max_[c];
      }
    }
    NamedBarrierSync(kExchangeReady, 256);
    float even[4], odd[4], keep[4], take[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int column = 8 * (c / 2) + head + c % 2;
      float sum[2] = {0, 0};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        sum[0] += s_.sum[0][w][column];
        sum[1] += s_.sum[1][w][column];
      }
      Running group = {s_.max[0][column], sum[0]};
      group.Fold(s_.max[1][column], sum[1], even[c], odd[c]);
      section_.state[c].Fold(group.max, group.sum, keep[c], take[c]);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int c = Head(i);
      const float own = out_[4 * kGroup + i / 8][i % 8];
      const float other = s_.exchange[1 - kGroup][i][thread_];
      const float both = kGroup == 0 ? Running::Apply(own, even[c], other, odd[c])
                                     : Running::Apply(other, even[c], own, odd[c]);
      section_.value[i] = Running::Apply(section_.value[i], keep[c], both, take[c]);
    }
  }

  __device__ void FoldSection() {
    float keep[4], take[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      running_.state[c].Fold(section_.state[c].max, section_.state[c].sum, keep[c], take[c]);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int c = Head(i);
      running_.value[i] = Running::Apply(running_.value[i], keep[c], section_.value[i], take[c]);
    }
  }

  __device__ void Write() {
    if (item_.part >= 0) {
      float4* values =
          output_.parts + int64_t{item_.part} * kPartValues / 4 + kGroup * 1024 + thread_;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float* value = running_.value + 4 * i;
        values[i * 128] = make_float4(value[0], value[1], value[2], value[3]);
      }
      if (kGroup == 0 && thread_ < 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Running &even = running_.state[2 * j], &odd = running_.state[2 * j + 1];
          output_.states[int64_t{item_.part} * kNarrowHeads / 2 + 4 * j + lane_] =
              make_float4(even.max, even.sum, odd.max, odd.sum);
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int c = Head(i), head = 8 * (c / 2) + 2 * (lane_ % 4) + c % 2;
      const int value = (4 * kGroup + i / 8) * 64 + warp_ * 16 + lane_ / 4 + i % 4 / 2 * 8;
      if (head < step_.heads) {
        output_.out[(int64_t{item_.token} * step_.heads + head) * kLatent + value] =
            __float2bfloat16_rn(running_.value[i] / running_.state[c].sum);
      }
    }
  }

  NarrowShared& s_;
  const NarrowStep& step_;
  const NarrowOutput& output_;
  const float scale_log2_;
  const int thread_, lane_, warp_;
  NarrowItem item_;
  uint32_t parity_ = 0;  // of this group's buffer
  float scores_[8], max_[4], sum_[4];
  float out_[8][8];  // of this warpgroup's tile: [64 values][columns]
  Values section_;   // over the section's groups so far
  Values running_;   // over the item's sections so far
};

}  // namespace fathom::mla
