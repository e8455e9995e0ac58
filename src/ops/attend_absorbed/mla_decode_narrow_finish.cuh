// What becomes of the sums over a group of positions in the narrow MLA decode kernel: they are
// folded into those over a section, and these into an item's, which are written.
#pragma once

#include "ops/attend_absorbed/mla_decode_narrow_codes.cuh"

namespace fathom::mla {

// The warp that keeps the states of an item's columns, a lane each: what warpgroups multiply values
// by.
class StateKeeper {
 public:
  __device__ StateKeeper(NarrowShared& s, const NarrowStep& step, const NarrowOutput& output)
      : s_(s), step_(step), output_(output), lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void Run() {
    for (uint32_t parity = 0;; parity ^= 1) {
      s_.query_full.Wait(parity);
      const NarrowItem item = s_.item[parity];
      if (item.token < 0) return;
      // Consumers may be done with an item's query before this warp has seen that it came.
      __syncwarp();
      if (lane_ == 0) s_.query_empty.Arrive();
      const int32_t length = item.length(), section_tokens = kGroupTokens << step_.section_log2;
      Running section, whole;
      for (int32_t begin = 0; begin < length; begin += kGroupTokens) {
        NamedBarrierSync(kNarrowEven, kSeesawThreads);
        const bool both = item.position + item.tokens - item.group * kGroupTokens - begin > kKeys;
        if (both) NamedBarrierSync(kNarrowOdd, kSeesawThreads);
        const int32_t end = begin + kGroupTokens;
        Fold(section, whole, both, end >= length || end % section_tokens == 0);
      }
      if (item.part >= 0) Write(item, whole);
    }
  }

 private:
  __device__ void Fold(Running& section, Running& whole, bool both, bool ends_section) {
    const auto& tiles = s_.column[turn_];
    float sum = SumOfWarps(tiles[0]), max = tiles[0].max[lane_];
    if (both) {
      sum = __fmaf_rn(sum, tiles[1].scale[lane_], SumOfWarps(tiles[1]));
      max = tiles[1].max[lane_];
    }
    NarrowShared::Factors& factors = s_.factors[turn_];
    float keep, take;
    section.Fold(max, sum, keep, take);
    factors.section[lane_] = {keep, take};
    if (ends_section) {
      whole.Fold(section.max, section.sum, keep, take);
      factors.item[lane_] = {keep, take};
      factors.inverse[lane_] = __frcp_rn(whole.sum);
      section = Running();
    }
    __syncwarp();
    if (lane_ == 0) factors.full.Arrive();
    turn_ ^= 1;
  }
  __device__ float SumOfWarps(const NarrowShared::Columns& columns) const {
    float sum = columns.sum[0][lane_];
#pragma unroll
    for (int warp = 1; warp < 4; ++warp) sum = __fadd_rn(sum, columns.sum[warp][lane_]);
    return sum;
  }
  __device__ void Write(const NarrowItem& item, const Running& state) const {
    const int own = 4 * item.width();  // columns of a thread
    const int c = lane_ % own;         // as thread lane_ / own has it
    if (lane_ >= 4 * own || c >= 4 * item.tokens) return;
    const int head = c % 4 / 2 * 8 + lane_ / own * 2 + c % 2;
    const int64_t part = c < 4 ? item.part : item.next_part;
    output_.states[part * kNarrowHeads + head] = {state.max, state.sum};
  }

  NarrowShared& s_;
  const NarrowStep& step_;
  const NarrowOutput& output_;
  const int lane_;
  uint32_t turn_ = 0;  // parity of the group of positions
};

// The value of a tile row, `row` or that 8 further, of a group's products `chunk`.
__device__ __forceinline__ int NarrowValue(bool fp8, int group, int warp, int chunk, int row,
                                           int second) {
  return 256 * group + (fp8 ? ChannelOfTileRow(warp, chunk, row, second)
                            : 64 * chunk + 16 * warp + row + 8 * second);
}

#define NARROW_CONSUMER                         \
  template <int kGroup, bool kFp8, int kTokens> \
  __device__ __forceinline__ void NarrowConsumer<kGroup, kFp8, kTokens>

NARROW_CONSUMER::FoldValues(bool ends_section) {
  NarrowShared::Factors& factors = s_.factors[Turn()];
  factors.full.Wait(phase_.groups() >> 1 & 1);
  Apply(section_, factors.section, [&](int i) { return out_[i / kProduct][i % kProduct]; });
  if (ends_section) {
    Apply(running_, factors.item, [&](int i) { return section_[i]; });
#pragma unroll
    for (int i = 0; i < kValues; ++i) section_[i] = 0;
  }
}

template <int kGroup, bool kFp8, int kTokens>
template <class Other>
__device__ __forceinline__ void NarrowConsumer<kGroup, kFp8, kTokens>::Apply(
    float (&values)[kValues], const float2* factors, const Other& other) {
  const float4* pairs = reinterpret_cast<const float4*>(By::Own(factors));
  float2 own[kOwnColumns];
#pragma unroll
  for (int c = 0; c < kOwnColumns; c += 2) {
    const float4 two = pairs[c / 2];
    own[c] = make_float2(two.x, two.y), own[c + 1] = make_float2(two.z, two.w);
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float2 factor = own[By::Of(i)];
    values[i] = Running::Apply(values[i], factor.x, other(i), factor.y);
  }
}

NARROW_CONSUMER::Write() {
  if (item_.part >= 0) return WriteParts();
  const float* inverse = By::Own(s_.factors[Turn() ^ 1].inverse);  // of the last group
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int c = By::Of(i), token = c / 4, head = c % 4 / 2 * 8 + lane_ % 4 * 2 + c % 2;
    const int value = NarrowValue(kFp8, kGroup, warp_, i / kProduct, lane_ / 4, i % 4 / 2);
    if (head < step_.heads && Has(token)) {
      output_.out[(int64_t{item_.token + token} * step_.heads + head) * kLatent + value] =
          __float2bfloat16_rn(__fmul_rn(running_[i], inverse[c]));
    }
  }
}

NARROW_CONSUMER::WriteParts() {
#pragma unroll
  for (int token = 0; token < kTokens; ++token) {
    if (!Has(token)) return;
    float4* part =
        output_.parts + (token == 0 ? item_.part : item_.next_part) * int64_t{kPartValues / 4};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* value = running_ + i / 2 * kProduct + 8 * token + i % 2 * 4;
      part[(kGroup * 8 + i) * 128 + thread_] = make_float4(value[0], value[1], value[2], value[3]);
    }
  }
}

#undef NARROW_CONSUMER

// A warpgroup's items.
template <int kGroup, bool kFp8>
__device__ void ConsumeNarrow(NarrowShared& s, const NarrowStep& step, const NarrowOutput& output,
                              float scale_log2) {
  NarrowPhase<kFp8> phase;
  for (uint32_t parity = 0;; parity ^= 1) {
    s.query_full.Wait(parity);
    const NarrowItem& item = s.item[parity];
    if (item.token < 0) return;
    if (item.width() == 1) {
      NarrowConsumer<kGroup, kFp8, 1>(s, step, output, scale_log2, item, phase).Run();
    } else {
      NarrowConsumer<kGroup, kFp8, 2>(s, step, output, scale_log2, item, phase).Run();
    }
  }
}

}  // namespace fathom::mla
