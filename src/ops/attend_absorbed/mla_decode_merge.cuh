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

// Four values of a result, two of each of two heads, as a thread of NarrowConsumer has them, and
// the states of their heads.
struct FoldedValues {
  Running state[2];
  float value[2][2] = {};  // [8 values apart][head]

  // `at` in a part, of two heads from `head` on.
  __device__ void Load(const NarrowOutput& output, int64_t place, int at, int head) {
    // From the L2: CombineFew also reads before it is there.
    const float4 values = __ldcg(output.parts + place * (kPartValues / 4) + at);
    const float4 states =
        __ldcg(reinterpret_cast<const float4*>(output.states) + (place * kNarrowHeads + head) / 2);
    state[0] = {states.x, states.y}, state[1] = {states.z, states.w};
    value[0][0] = values.x, value[0][1] = values.y;
    value[1][0] = values.z, value[1][1] = values.w;
  }
  __device__ void Fold(const FoldedValues& other) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float keep, take;
      state[h].Fold(other.state[h].max, other.state[h].sum, keep, take);
      value[0][h] = Running::Apply(value[0][h], keep, other.value[0][h], take);
      value[1][h] = Running::Apply(value[1][h], keep, other.value[1][h], take);
    }
  }
};

// kBatch parts are on their way together.
template <int kBatch>
__device__ inline FoldedValues FoldParts(const NarrowOutput& output, const TokenParts& parts,
                                         int at, int head) {
  FoldedValues section, result;
  for (int32_t begin = 0; begin < parts.count; begin += kBatch) {
    FoldedValues batch[kBatch];
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
        section = FoldedValues();
      }
    }
  }
  return result;
}

}  // namespace fathom::mla
