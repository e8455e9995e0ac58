// MLA decode for at most 16 heads: positions are M of wgmma and heads N, so that nothing is
// computed for heads that are not there. Two tokens of a row share an item: N is then 32, which
// costs hardly more, since products of so few columns wait for shared memory. What the warps that
// compute do; mla_decode_narrow.cu launches it.
//
// The order of additions does not depend on who shares the step or the item, nor on how the work is
// cut. A context is a sequence of groups of 128 positions, two tiles, each summed up for itself.
// Groups are folded in order into sections of a power of two of them, and sections in order into
// the result. A block that has all groups of a section, or all sections from the first on, folds
// them as it goes; what different blocks computed is folded by CombineNarrow, with the same
// arithmetic.
#pragma once

#include <cuda_bf16.h>

#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_absorbed/mla_decode_narrow_produce.cuh"
#include "ops/attend_absorbed/mla_decode_softmax.cuh"

namespace fathom::mla {

inline constexpr int kPartValues = kNarrowHeads * kLatent;

enum NarrowBarrier : uint32_t {
  kNarrowFirst = 1,   // the threads of consumer group 0
  kNarrowSecond = 2,  // of group 1
  kNarrowEven = 3,    // group 0 left the even tile's weights in shared memory
  kNarrowOdd = 4,     // group 1 the odd tile's
};
// At the latter two: both groups, and the warp that keeps the states.
inline constexpr uint32_t kSeesawThreads = 256 + 32;

// One of the two warpgroups that compute an item kTokens wide. Group 0 scores the even tiles
// and sums up values 0-255 of all tiles, group 1 the odd tiles and values 256-511. They are half a
// tile apart: one buffer is filled, or its weights are computed, while products read the other.
//
// A column is a head of a token. A thread holds, of each product, columns 8j + 2 (lane % 4) + e at
// index 4j + e, of tile row (position or value) 16 warp + lane / 4, and of tile row + 8 at index
// 4j + 2 + e. What it holds by column is indexed 2j + e.
template <int kGroup, bool kFp8, int kTokens>
class NarrowConsumer {
 public:
  // `phase`, which goes from item to item: parities of tile buffers 0 and 1, and from bit 2 on how
  // many groups of positions there were.
  __device__ NarrowConsumer(NarrowShared& s, const NarrowStep& step, const NarrowOutput& output,
                            float scale_log2, const NarrowItem& item, uint32_t& phase)
      : s_(s),
        step_(step),
        output_(output),
        scale_log2_(scale_log2),
        thread_(static_cast<int>(threadIdx.x % 128)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        item_(item),
        phase_(phase) {}

  __device__ void Run() {
    const int32_t length = item_.length(), section_tokens = kGroupTokens << step_.section_log2;
#pragma unroll
    for (int i = 0; i < kValues; ++i) running_[i] = section_[i] = 0;
    // Positions that the last token sees from the next group on.
    int32_t left = item_.position + item_.tokens - item_.group * kGroupTokens;
    for (int32_t end = kGroupTokens;; end += kGroupTokens, left -= kGroupTokens) {
      const bool last = end >= length;
      Group(left, last, last || end % section_tokens == 0);
      if (last) break;
    }
    Write();
  }

 private:
  static constexpr uint32_t kOwnBarrier = kGroup == 0 ? kNarrowFirst : kNarrowSecond;
  static constexpr int kColumns = kTokens * kNarrowHeads;
  static constexpr int kOwnColumns = kColumns / 4;  // of which a thread holds some
  static constexpr int kProduct = kColumns / 2;     // what it holds of a product
  static constexpr int kValues = 4 * kProduct;      // of a result

  // In shared memory columns lie as threads hold them: those of lanes 4i, then of 4i + 1, ...
  template <class T>
  __device__ const T* OwnColumns(const T* columns) const {
    return columns + lane_ % 4 * kOwnColumns;
  }
  // The place there of the column of which this lane gets what Reduce makes.
  __device__ int PlaceOfLane() const {
    return lane_ % 4 * kOwnColumns + lane_ / 4 * kTokens / 2;
  }
  static __device__ constexpr int ColumnOf(int i) {
    return i % kProduct / 4 * 2 + i % 2;
  }
  // Whether the item has this token of its columns'.
  __device__ bool Has(int token) const {
    return token == 0 || item_.tokens > 1;
  }

  // A group of positions, of which the last token sees `left` or all; perhaps the item's last.
  __device__ void Group(int32_t left, bool last, bool ends_section) {
    const bool both = left > kKeys;
    if (kGroup == 0 || both) Score(left - kGroup * kKeys);
    if (last) FreeQuery();
    if constexpr (kGroup == 0) {
      EvenFirst(both);
    } else {
      OddSecond(both);
    }
    AwaitSums();
    Free(both ? 1 : 0);
    FoldValues(ends_section);
    phase_ += 4;
  }

  // The tiles as group 0 sees them, until the last one's sums are on their way.
  __device__ void EvenFirst(bool both) {
    LeaveBest();
    LeaveWeights(/*before=*/nullptr);
    NamedBarrierArrive(kNarrowEven, kSeesawThreads);
    NamedBarrierSync(kOwnBarrier, 128);
    AddTile(0);
    if (!both) return;
    AwaitSums();
    Free(0);
    NamedBarrierSync(kNarrowOdd, kSeesawThreads);
    s_.full[1][0].Wait(BufferParity(1));  // it is there; but this thread must see it, too
    Rescale();
    AddTile(1);
  }

  // The same as group 1 sees them: the even tile's values are added while the odd tile's weights
  // are computed.
  __device__ void OddSecond(bool both) {
    NamedBarrierSync(kNarrowEven, kSeesawThreads);
    s_.full[0][1].Wait(BufferParity(0));
    AddTile(0);
    if (!both) return;
    LeaveBest();
    AwaitSums();
    Free(0);
    LeaveWeights(s_.column[Turn()][0].max);
    NamedBarrierArrive(kNarrowOdd, kSeesawThreads);
    NamedBarrierSync(kOwnBarrier, 128);
    Rescale();
    AddTile(1);
  }

  __device__ uint32_t BufferParity(int buffer) const {
    return phase_ >> buffer & 1;
  }
  // Parity of the group of positions.
  __device__ uint32_t Turn() const {
    return phase_ >> 2 & 1;
  }

  // This warpgroup's tile of an FP8 cache.
  __device__ void Widen() {
    int lane = lane_;  // the compiler must not keep what follows from it: registers are short
    asm volatile("" : "+r"(lane));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      s_.widen.raw[kGroup][half].Wait(BufferParity(kGroup));
      WidenHalf<8, 4>(s_.keys[kGroup][4 * half], s_.widen.scales[kGroup], warp_, lane);
    }
    FenceAsyncShared();
    NamedBarrierSync(kOwnBarrier, 128);
  }

  // scores_ = K Q^T of this warpgroup's tile, before scaling, of which the last token sees `seen`
  // positions or all.
  __device__ void Score(int32_t seen) {
    const uint32_t parity = BufferParity(kGroup);
    if constexpr (kFp8) Widen();
    if (seen < kKeys) {
      s_.full[kGroup][0].Wait(parity);
      s_.full[kGroup][1].Wait(parity);
      ClearKeys(seen);
    }
    const uint64_t keys = WgmmaOperand(SharedAddress(s_.keys[kGroup]));
    const uint64_t query = WgmmaOperand(SharedAddress(s_.query));
    s_.full[kGroup][0].Wait(parity);
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < kNarrowChunks; ++chunk) {
      if (chunk == 4) {
        s_.full[kGroup][1].Wait(parity);
        WgmmaFence();  // after a loop that diverges the compiler would serialise products without
                       // it
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaBf16<kColumns>::template Add<Major::kK, Major::kK>(
            scores_, keys + (chunk * kTileChunkBytes + k * 32) / 16,
            query + (chunk * kTokens * kHeadChunkBytes + k * 32) / 16, chunk > 0 || k > 0);
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
    WgmmaHold(scores_);
    if (seen < kKeys + kTokens - 1) Mask(seen);
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
    for (int i = 0; i < kProduct; ++i) {
      // Of two tokens the first sees a position less, and a token that is not there as much.
      const int later_tokens = i / 8 < kTokens - 1 ? item_.tokens - 1 : 0;
      if (tile_row + i % 4 / 2 * 8 >= seen - later_tokens) scores_[i] = -INFINITY;
    }
  }

  // Reduces what a warp's lanes hold by column over its positions; a lane gets one column's result.
  // Lanes halve the columns between them, so that few values travel.
  template <class Op>
  __device__ float Reduce(float (&values)[kOwnColumns], const Op& op) const {
    int columns = kOwnColumns;
#pragma unroll
    for (int distance = 16; distance >= 4; distance /= 2) {
      const bool upper = (lane_ & distance) != 0;
      const int half = columns / 2;
      if (half > 0) {
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float give = upper ? values[i] : values[half + i];
          const float keep = upper ? values[half + i] : values[i];
          values[i] = op(keep, __shfl_xor_sync(kAllLanes, give, distance));
        }
        columns = half;
      } else {
        values[0] = op(values[0], __shfl_xor_sync(kAllLanes, values[0], distance));
      }
    }
    return values[0];
  }

  // Leaves the greatest scores of this warp's positions.
  __device__ void LeaveBest() {
    float values[kOwnColumns];
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) values[c] = fmaxf(Low(c), High(c));
    s_.best[kGroup][warp_][PlaceOfLane()] =
        Reduce(values, [](float a, float b) { return fmaxf(a, b); });
  }
  // Turns scores_ into weights in shared memory; leaves their sums, what they are relative to, and
  // what sums relative to the maxima `before`, if there are such, are multiplied by.
  __device__ void LeaveWeights(const float* before) {
    NamedBarrierSync(kOwnBarrier, 128);  // behind LeaveBest
    NarrowShared::Columns& columns = s_.column[Turn()][kGroup];
    const int place = PlaceOfLane();
    float best = s_.best[kGroup][0][place];
#pragma unroll
    for (int warp = 1; warp < 4; ++warp) best = fmaxf(best, s_.best[kGroup][warp][place]);
    RunningMax max;
    if (before != nullptr) max.value = before[place];
    const float scale = max.Next(__fmul_rn(best, scale_log2_));
    s_.base[kGroup][warp_][place] = max.base();
    if (warp_ == 0) columns.max[place] = max.value, columns.scale[place] = scale;
    __syncwarp();
    float values[kOwnColumns];
    const float4* base = reinterpret_cast<const float4*>(OwnColumns(s_.base[kGroup][warp_]));
#pragma unroll
    for (int c = 0; c < kOwnColumns; c += 4) {
      const float4 of = base[c / 4];
      values[c] = TakeWeights(c, of.x);
      values[c + 1] = TakeWeights(c + 1, of.y);
      values[c + 2] = TakeWeights(c + 2, of.z);
      values[c + 3] = TakeWeights(c + 3, of.w);
    }
    StoreWeights();
    FenceAsyncShared();
    columns.sum[warp_][place] = Reduce(values, [](float a, float b) { return __fadd_rn(a, b); });
  }
  // Scores of a column, of two positions.
  __device__ float& Low(int c) {
    return scores_[c / 2 * 4 + c % 2];
  }
  __device__ float& High(int c) {
    return scores_[c / 2 * 4 + 2 + c % 2];
  }
  // They become weights; their sum.
  __device__ float TakeWeights(int c, float base) {
    Low(c) = Exp2(__fmaf_rn(Low(c), scale_log2_, -base));
    High(c) = Exp2(__fmaf_rn(High(c), scale_log2_, -base));
    return __fadd_rn(Low(c), High(c));
  }
  __device__ void StoreWeights() {
    // Matrix i of four: columns 8 (i / 2) and up, positions 16 warp + 8 (i % 2) and up; transposed.
    const int tile_row = lane_ / 16 * 8 + lane_ % 8, chunk = 2 * warp_ + lane_ / 8 % 2;
    const uint32_t address =
        SharedAddress(s_.weights[kGroup]) + tile_row * 128 + ((chunk ^ (tile_row % 8)) * 16);
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = scores_ + 8 * token + 2 * i;
        const __nv_bfloat162 rounded = __floats2bfloat162_rn(pair[0], pair[1]);
        packed[i] = *reinterpret_cast<const uint32_t*>(&rounded);
      }
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       address + token * kHeadChunkBytes),
                   "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
                   : "memory");
    }
  }

  // The even tile's sums, relative to the maxima after the odd one. Most tiles leave all maxima as
  // they are: multiplying by 1 is left out.
  __device__ void Rescale() {
    const float* from = OwnColumns(s_.column[Turn()][1].scale);
    float scale[kOwnColumns];
    bool any = false;
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) {
      scale[c] = from[c];
      any = any || scale[c] != 1;
    }
    if (!__any_sync(kAllLanes, any)) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) out_[i / kProduct][i % kProduct] *= scale[ColumnOf(i)];
  }

  // out_ (+)= weights x values of a tile, of this group's values; without waiting.
  __device__ void AddTile(int tile) {
    const uint64_t values = WgmmaOperand(SharedAddress(s_.keys[tile][4 * kGroup]), kTileChunkBytes);
    const uint64_t weights = WgmmaOperand(SharedAddress(s_.weights[tile]));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        WgmmaBf16<kColumns>::template Add<Major::kMn, Major::kK>(
            out_[chunk], values + (chunk * kTileChunkBytes + k * 2048) / 16, weights + k * 2,
            tile > 0 || k > 0);
      }
    }
    WgmmaCommit();
  }
  __device__ void AwaitSums() {
    WgmmaWait<0>();
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) WgmmaHold(out_[chunk]);
  }

  // This warp needs its half of the buffer no more.
  __device__ void Free(int buffer) {
    __syncwarp();
    if (lane_ == 0) s_.empty[buffer][kGroup].Arrive();
    phase_ ^= 1u << buffer;
  }

  // Of mla_decode_narrow_finish.cuh: a group of positions goes into the section, and that, where it
  // ends, into the item's result, which is written.
  __device__ void FoldValues(bool ends_section);
  template <class Other>
  __device__ void Apply(float (&values)[kValues], const float2* factors, const Other& other);
  __device__ void Write();
  __device__ void WriteParts();

  NarrowShared& s_;
  const NarrowStep& step_;
  const NarrowOutput& output_;
  const float scale_log2_;
  const int thread_, lane_, warp_;
  const NarrowItem& item_;
  uint32_t& phase_;
  float scores_[kProduct];
  float out_[4][kProduct];  // of a group of positions: [64 values][columns]
  float section_[kValues];  // over the section's groups so far
  float running_[kValues];  // over the item's sections so far
};

}  // namespace fathom::mla
