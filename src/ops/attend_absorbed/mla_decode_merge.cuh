// Folding the parts of a token's context that blocks of the narrow MLA decode computed one by one:
// groups into sections, sections into the result, in order.
#pragma once

#include "ops/attend_absorbed/mla_decode_narrow_finish.cuh"

namespace fathom::mla {

// The parts of kTokens tokens from `token` on: one round trip to memory.
template <int kTokens>
__device__ inline void FindParts(const NarrowStep& step, int32_t token,
                                 TokenParts (&parts)[kTokens]) {
  const int32_t live = *step.live;
  const int2 plan = *step.plan;  // log2 of a unit's groups, and units of the first item
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int32_t at = min(token + i, step.tokens - 1);
    const int32_t count = (step.positions[at] >> (kGroupLog2 + plan.x)) + 2 - plan.y;
    parts[i] = {.token = at,
                .first = step.first_single[at] - 1,
                .count = token + i < live ? count : 0,
                .section_mask = (1 << (step.section_log2 - plan.x)) - 1};
  }
}

// Two values of a result of each of two heads, as a thread of NarrowConsumer has them, or of one of
// these heads, and the states of the heads.
template <int kHeads>
struct FoldedValues {
  Running state[kHeads];
  float value[2][kHeads] = {};  // [8 values apart][head]

  // `at` in a part; of two heads `head` is the first.
  __device__ void Load(const NarrowOutput& output, int64_t place, int at, int head) {
    // From the L2: CombineFew and MergeValues also read before it is there.
    const float4 values = __ldcg(output.parts + place * (kPartValues / 4) + at);
    const float2* const states = output.states + place * kNarrowHeads + head;
    if constexpr (kHeads == 2) {
      const float4 both = __ldcg(reinterpret_cast<const float4*>(states));
      state[0] = {both.x, both.y}, state[1] = {both.z, both.w};
      value[0][0] = values.x, value[0][1] = values.y;
      value[1][0] = values.z, value[1][1] = values.w;
    } else {
      const float2 own = __ldcg(states);
      state[0] = {own.x, own.y};
      value[0][0] = head % 2 == 0 ? values.x : values.y;
      value[1][0] = head % 2 == 0 ? values.z : values.w;
    }
  }
  __device__ void Fold(const FoldedValues& other) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float keep, take;
      state[h].Fold(other.state[h].max, other.state[h].sum, keep, take);
      value[0][h] = Running::Apply(value[0][h], keep, other.value[0][h], take);
      value[1][h] = Running::Apply(value[1][h], keep, other.value[1][h], take);
    }
  }
};

// kBatch parts are on their way together.
template <int kBatch, int kHeads>
__device__ inline FoldedValues<kHeads> FoldParts(const NarrowOutput& output,
                                                 const TokenParts& parts, int at, int head) {
  FoldedValues<kHeads> section, result;
  for (int32_t begin = 0; begin < parts.count; begin += kBatch) {
    FoldedValues<kHeads> batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      batch[j].Load(output, parts.Place(min(begin + j, parts.count - 1)), at, head);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int32_t part = begin + j;
      if (part >= parts.count) break;
      section.Fold(batch[j]);
      if (((part + 1) & parts.section_mask) == 0 || part == parts.count - 1) {
        result.Fold(section);
        section = {};
      }
    }
  }
  return result;
}

}  // namespace fathom::mla
