#include <algorithm>

#include "ops/reference_ops.h"

namespace fathom {
namespace {

bool IsStop(const SlotState& s, int32_t slot, int32_t token) {
  if (s.generated.As<int32_t>()[slot] < s.min_tokens.As<int32_t>()[slot]) return false;
  const int32_t* stops = s.stop_tokens.As<int32_t>(slot);
  return std::find(stops, stops + s.stop_tokens.dim(1), token) != stops + s.stop_tokens.dim(1);
}

// Takes the tokens that were sampled; returns how many of them stand.
int32_t TakeSampled(const SlotState& s, int32_t slot, const int32_t* tokens, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    const bool failed = tokens[i] < 0;
    CHECK(tokens[i] < s.counts.dim(1), "commit: token {}", tokens[i]);
    const bool ends = failed || IsStop(s, slot, tokens[i]);
    if (!failed) {
      s.last_token.As<int32_t>()[slot] = tokens[i];
      ++s.generated.As<int32_t>()[slot];
      ++s.counts.As<int32_t>(slot)[tokens[i]];
    }
    if (ends) {
      s.ended.As<int32_t>()[slot] = 1;
      return i + 1;
    }
  }
  return count;
}

}  // namespace

void CommitReference(OpContext&, const CommitArgs& a) {
  const int32_t *begin = a.row_begin.As<int32_t>(), *logits = a.logit_begin.As<int32_t>();
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r], tokens = begin[r + 1] - begin[r];
    CHECK(slot >= 0 && slot < a.slots.counts.dim(0) && tokens >= 0 &&
              begin[r + 1] <= a.positions.dim(0) && logits[r + 1] <= a.sampled.dim(0),
          "commit: row {} is tokens [{}, {}) of slot {}, logit vectors [{}, {})", r, begin[r],
          begin[r + 1], slot, logits[r], logits[r + 1]);
    if (tokens == 0) continue;
    const int32_t samples = logits[r + 1] - logits[r];
    int32_t& count = a.row_count.As<int32_t>()[r];
    const int32_t taken = count - (tokens - samples);
    CHECK(count <= tokens && taken >= std::min(samples, 1), "commit: {} of {} tokens stand", count,
          tokens);
    count -= taken - TakeSampled(a.slots, slot, a.sampled.As<int32_t>() + logits[r], taken);
    a.slots.length.As<int32_t>()[slot] = a.positions.As<int32_t>()[begin[r]] + count;
  }
}

}  // namespace fathom
