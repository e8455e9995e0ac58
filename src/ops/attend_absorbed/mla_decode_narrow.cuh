// MLA decode for at most 16 heads: positions are M of wgmma and heads N, so that nothing is
// computed for heads that are not there. Two tokens of a row share an item: N is then 32, which
// costs hardly more, since products of so few columns wait for shared memory. What the warps that
// compute do; mla_decode_narrow.cu launches it.
//
// The order of additions does not depend on who shares the step or the item, nor on how the work is
// cut. A context is a sequence of groups of 128 positions, two tiles, each summed up for itself.
// Groups are folded in order into sections of a power of two of them, and sections in order into
// the result. A block that has all groups of a section, or all sections from the first on, folds
// them as it goes; what different blocks computed is folded by CombineFew or CombineMany, with the
// same arithmetic.
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
  kNarrowQuery = 5,   // both groups: the query is prepared (FP8)
};
// At the latter two: both groups, and the warp that keeps the states.
inline constexpr uint32_t kSeesawThreads = 256 + 32;

// One of the two warpgroups that compute an item kTokens wide. Group 0 scores the even tiles
// and sums up values 0-255 of all tiles, group 1 the odd tiles and values 256-511. They are half a
// tile apart: one buffer is filled, or its weights are computed, while products read the other.
//
// A column is a head of a token; what a thread holds of them says mla_decode_by_column.cuh.
template <int kGroup, bool kFp8, int kTokens>
class NarrowConsumer {
 public:
  __device__ NarrowConsumer(NarrowShared& s, const NarrowStep& step, const NarrowOutput& output,
                            float scale_log2, const NarrowItem& item, NarrowPhase<kFp8>& phase)
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
    if constexpr (kFp8) PrepareQuery();
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
  using By = ByColumn<kColumns>;
  static constexpr int kOwnColumns = By::kOwn;
  static constexpr int kProduct = By::kProduct;
  static constexpr int kValues = 4 * kProduct;  // of a result

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
    phase_.Advance(both ? 2 : 1);
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
    AwaitTile(1, 0);  // it is there; but this thread must see it, too
    Rescale();
    AddTile(1);
  }

  // The same as group 1 sees them: the even tile's values are added while the odd tile's weights
  // are computed. Codes keep the warps busy, too, so that the weights, which the other group waits
  // for, come first.
  __device__ void OddSecond(bool both) {
    if (kFp8 && both) LeaveBest();
    NamedBarrierSync(kNarrowEven, kSeesawThreads);
    if (kFp8 && both) LeaveOddWeights();
    AwaitTile(0, 1);
    AddTile(0);
    if (!both) return;
    if (!kFp8) LeaveBest();
    AwaitSums();
    Free(0);
    if (!kFp8) LeaveOddWeights();
    NamedBarrierSync(kOwnBarrier, 128);
    Rescale();
    AddTile(1);
  }
  __device__ void LeaveOddWeights() {
    LeaveWeights(s_.column[Turn()][0].max);
    NamedBarrierArrive(kNarrowOdd, kSeesawThreads);
  }

  __device__ uint8_t* Chunk(int tile, int chunk) {
    return s_.Chunk<kFp8>(phase_.Buffer(tile), chunk);
  }
  __device__ void AwaitTile(int tile, int half) {
    s_.full[phase_.Buffer(tile)][half].Wait(phase_.Parity(tile));
  }
  // Parity of the group of positions.
  __device__ uint32_t Turn() const {
    return phase_.groups() & 1;
  }

  // scores_ = K Q^T of this warpgroup's tile, of which the last token sees `seen` positions or all:
  // before scaling, of an FP8 cache what PositionScales::Finish makes of them.
  __device__ void Score(int32_t seen) {
    if (seen < kKeys) {
      AwaitTile(kGroup, 0);
      AwaitTile(kGroup, 1);
      ClearKeys(seen);
    }
    if constexpr (kFp8) {
      ScoreCodes(seen);
    } else {
      ScoreKeys();
    }
    if (seen < kKeys + kTokens - 1) Mask(seen);
  }
  __device__ void ScoreKeys() {
    const uint32_t keys = WgmmaOperand(SharedAddress(Chunk(kGroup, 0)));
    const uint32_t query = WgmmaOperand(SharedAddress(s_.query));
    AwaitTile(kGroup, 0);
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < kNarrowChunks; ++chunk) {
      if (chunk == 4) {
        AwaitTile(kGroup, 1);
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
  }

  __device__ void FreeQuery() {
    __syncwarp();
    if (lane_ == 0) s_.query_empty.Arrive();
  }

  // Zeroes the values of positions that nobody sees: a page's tail may hold anything, and 0 x NaN
  // is NaN.
  __device__ void ClearKeys(int32_t seen) {
    constexpr int kParts = 8 * NarrowTiles<kFp8>::kLatentChunks;
    for (int i = thread_; i < (kKeys - seen) * kParts; i += 128) {
      const int tile_row = seen + i / kParts, chunk = i % kParts / 8, part = i % 8;
      *reinterpret_cast<uint4*>(Chunk(kGroup, chunk) + tile_row * 128 + part * 16) =
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

  // Leaves the greatest scores of this warp's positions.
  __device__ void LeaveBest() {
    float values[kOwnColumns];
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) values[c] = fmaxf(Low(c), High(c));
    By::ReduceMax(values);
    s_.best[kGroup][warp_][By::PlaceOfLane()] = values[0];
  }
  // Turns scores_ into weights in shared memory; leaves their sums, what they are relative to, and
  // what sums relative to the maxima `before`, if there are such, are multiplied by.
  __device__ void LeaveWeights(const float* before) {
    NamedBarrierSync(kOwnBarrier, 128);  // behind LeaveBest
    NarrowShared::Columns& columns = s_.column[Turn()][kGroup];
    const int place = By::PlaceOfLane();
    float best = s_.best[kGroup][0][place];
#pragma unroll
    for (int warp = 1; warp < 4; ++warp) best = fmaxf(best, s_.best[kGroup][warp][place]);
    RunningMax max;
    if (before != nullptr) max.value = before[place];
    const float scale = kFp8 ? max.Next(best, /*slack=*/0) : max.Next(__fmul_rn(best, scale_log2_));
    s_.base[kGroup][warp_][place] = kFp8 ? __fsub_rn(max.base(), kCodeBits) : max.base();
    if (warp_ == 0) columns.max[place] = max.value, columns.scale[place] = scale;
    __syncwarp();
    float values[kOwnColumns];
    const float4* base = reinterpret_cast<const float4*>(By::Own(s_.base[kGroup][warp_]));
#pragma unroll
    for (int c = 0; c < kOwnColumns; c += 4) {
      const float4 of = base[c / 4];
      values[c] = TakeWeights(c, of.x);
      values[c + 1] = TakeWeights(c + 1, of.y);
      values[c + 2] = TakeWeights(c + 2, of.z);
      values[c + 3] = TakeWeights(c + 3, of.w);
    }
    if constexpr (kFp8) {
      StoreWeightCodes<kColumns>(SharedAddress(s_.weights[Turn()]), kGroup, scores_);
    } else {
      By::StoreWeights(SharedAddress(s_.weights[0][kGroup]), scores_);
    }
    FenceAsyncShared();
    By::ReduceSum(values);
    columns.sum[warp_][place] = values[0];
  }
  // Scores of a column, of two positions.
  __device__ float& Low(int c) {
    return By::Low(scores_, c);
  }
  __device__ float& High(int c) {
    return By::High(scores_, c);
  }
  // They become weights; their sum.
  __device__ float TakeWeights(int c, float base) {
    if constexpr (kFp8) return scales_.TakeWeights(Low(c), High(c), base);
    Low(c) = Exp2(__fmaf_rn(Low(c), scale_log2_, -base));
    High(c) = Exp2(__fmaf_rn(High(c), scale_log2_, -base));
    return __fadd_rn(Low(c), High(c));
  }

  // The even tile's sums, relative to the maxima after the odd one. In BF16 most tiles leave all
  // maxima as they are: multiplying by 1 is left out.
  __device__ void Rescale() {
    const float* from = By::Own(s_.column[Turn()][1].scale);
    float scale[kOwnColumns];
    bool any = false;
#pragma unroll
    for (int c = 0; c < kOwnColumns; ++c) {
      scale[c] = from[c];
      any = any || scale[c] != 1;
    }
    if (!__any_sync(kAllLanes, any)) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) out_[i / kProduct][i % kProduct] *= scale[By::Of(i)];
  }

  // out_ (+)= weights x values of a tile, of this group's values; without waiting, but for codes.
  __device__ void AddTile(int tile) {
    if constexpr (kFp8) return AddCodes(tile);
    const uint32_t values = WgmmaOperand(SharedAddress(Chunk(tile, 4 * kGroup)), kTileChunkBytes);
    const uint32_t weights = WgmmaOperand(SharedAddress(s_.weights[0][tile]));
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

  // This warp needs its half of the tile no more.
  __device__ void Free(int tile) {
    __syncwarp();
    if (lane_ == 0) s_.empty[phase_.Buffer(tile)][kGroup].Arrive();
  }

  // Of mla_decode_narrow_codes.cuh: the same of an FP8 cache.
  __device__ void PrepareQuery();
  __device__ void ScoreCodes(int32_t seen);
  __device__ void AddCodes(int tile);

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
  NarrowPhase<kFp8>& phase_;
  PositionScales scales_;  // of an FP8 cache's tile
  float scores_[kProduct];
  float out_[4][kProduct];  // of a group of positions: [64 values][columns]
  float section_[kValues];  // over the section's groups so far
  float running_[kValues];  // over the item's sections so far
};

}  // namespace fathom::mla
