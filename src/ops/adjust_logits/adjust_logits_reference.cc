#include <algorithm>
#include <limits>
#include <span>

#include "base/token_mask.h"
#include "ops/adjust_logits/adjust_vector.h"
#include "ops/reference_ops.h"

namespace fathom {
namespace {

// What has come of a logit vector's request: what its slot counts, and the drafts before the
// vector.
struct Output {
  int32_t slot = 0;
  std::span<const int32_t> drafts;

  int32_t Count(const SlotState& s, int64_t token) const {
    return s.counts.As<int32_t>(slot)[token] +
           static_cast<int32_t>(std::count(drafts.begin(), drafts.end(), token));
  }
  int32_t Generated(const SlotState& s) const {
    return s.generated.As<int32_t>()[slot] + static_cast<int32_t>(drafts.size());
  }
};

float* LogitOf(const AdjustLogitsArgs& a, int64_t vector, int32_t token) {
  CHECK(token < a.logits.dim(1), "adjust_logits: token {} of {}", token, a.logits.dim(1));
  return a.logits.As<float>(vector) + token;
}

void AddBias(const AdjustLogitsArgs& a, int64_t vector, int32_t slot) {
  for (int64_t i = 0; i < a.slots.bias_ids.dim(1); ++i) {
    const int32_t token = a.slots.bias_ids.As<int32_t>(slot)[i];
    if (token >= 0) *LogitOf(a, vector, token) += a.slots.bias_values.As<float>(slot)[i];
  }
}

void Penalise(const AdjustLogitsArgs& a, int64_t vector, const Output& output) {
  const int32_t slot = output.slot;
  const float repetition = a.slots.repetition.As<float>()[slot];
  const float frequency = a.slots.frequency.As<float>()[slot];
  const float presence = a.slots.presence.As<float>()[slot];
  if (repetition == 1 && frequency == 0 && presence == 0) return;
  for (int64_t v = 0; v < a.logits.dim(1); ++v) {
    float& logit = a.logits.As<float>(vector)[v];
    const int32_t count = output.Count(a.slots, v);
    if (count > 0 || a.slots.in_prompt.As<uint8_t>(slot)[v] != 0) {
      logit = logit > 0 ? logit / repetition : logit * repetition;
    }
    if (count > 0) {
      logit -= frequency * static_cast<float>(count);
      logit -= presence;
    }
  }
}

void Ban(const AdjustLogitsArgs& a, int64_t vector, const Output& output) {
  const int32_t slot = output.slot;
  if (output.Generated(a.slots) >= a.slots.min_tokens.As<int32_t>()[slot]) return;
  for (int64_t i = 0; i < a.slots.stop_tokens.dim(1); ++i) {
    const int32_t token = a.slots.stop_tokens.As<int32_t>(slot)[i];
    if (token >= 0) *LogitOf(a, vector, token) = -std::numeric_limits<float>::infinity();
  }
}

void Mask(const AdjustLogitsArgs& a, int64_t vector, int32_t slot) {
  if (a.slots.masked.As<int32_t>()[slot] == 0) return;
  const int32_t* words =
      a.slots.mask.As<int32_t>(slot) + a.ordinal.As<int32_t>()[vector] * MaskWords(a.logits.dim(1));
  for (int64_t v = 0; v < a.logits.dim(1); ++v) {
    const bool allowed = (static_cast<uint32_t>(words[v / 32]) >> (v % 32) & 1) != 0;
    if (!allowed) a.logits.As<float>(vector)[v] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void AdjustVector(const AdjustLogitsArgs& a, int64_t vector) {
  const int32_t token = a.index.As<int32_t>()[vector];
  CHECK(token >= 0 && token < a.token_slot.dim(0), "adjust_logits: token {}", token);
  const int32_t slot = a.token_slot.As<int32_t>()[token];
  CHECK(slot >= 0 && slot < a.slots.counts.dim(0), "adjust_logits: slot {}", slot);
  const int32_t ordinal = a.ordinal.As<int32_t>()[vector];
  CHECK(ordinal >= 0 && ordinal <= a.slots.drafts.dim(1), "adjust_logits: ordinal {}", ordinal);
  const Output output = {
      .slot = slot, .drafts = {a.slots.drafts.As<int32_t>(slot), static_cast<size_t>(ordinal)}};
  AddBias(a, vector, slot);
  Penalise(a, vector, output);
  Ban(a, vector, output);
  Mask(a, vector, slot);
}

void AdjustLogitsReference(OpContext&, const AdjustLogitsArgs& a) {
  for (int64_t vector = 0; vector < *a.live.As<int32_t>(); ++vector) AdjustVector(a, vector);
}

}  // namespace fathom
