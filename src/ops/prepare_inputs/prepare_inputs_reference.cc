#include <algorithm>

#include "ops/reference_ops.h"

namespace fathom {
namespace {

int32_t Get(const TensorView& view, int64_t i) {
  return view.As<int32_t>()[i];
}

int32_t& Set(const TensorView& view, int64_t i) {
  return view.As<int32_t>()[i];
}

bool IsDecode(const PrepareInputsArgs& a, int32_t row) {
  return Get(a.plan_begin, row) == -1;
}

int32_t LiveTokens(const PrepareInputsArgs& a, int32_t row, int32_t slot) {
  const int32_t capacity = Get(a.row_capacity, row + 1) - Get(a.row_capacity, row);
  if (!IsDecode(a, row)) return capacity;
  if (Get(a.slots.ended, slot) != 0) return 0;
  const int32_t left = Get(a.slots.final_length, slot) - 1 - Get(a.slots.length, slot);
  return std::max(0, std::min({capacity, 1 + Get(a.slots.num_drafts, slot), left}));
}

int32_t LogitVectors(const PrepareInputsArgs& a, int32_t row, int32_t live) {
  if (Get(a.plan_samples, row) == 0) return 0;
  return IsDecode(a, row) ? live : 1;
}

}  // namespace

void PrepareInputsReference(OpContext&, const PrepareInputsArgs& a) {
  const int32_t rows = Get(a.live_rows, 0);
  int32_t tokens = 0, logits = 0;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t slot = Get(a.row_slot, r), first = Get(a.row_capacity, r);
    CHECK(slot >= 0 && slot < a.slots.length.dim(0) && first <= Get(a.row_capacity, r + 1) &&
              Get(a.row_capacity, r + 1) <= a.ids.dim(0),
          "prepare_inputs: row {} is tokens [{}, {}) of slot {}", r, first,
          Get(a.row_capacity, r + 1), slot);
    const int32_t live = LiveTokens(a, r, slot), logit_vectors = LogitVectors(a, r, live);
    CHECK(logits + logit_vectors <= a.logit_index.dim(0), "prepare_inputs: {} logit vectors",
          logits + logit_vectors);
    const int32_t begin = IsDecode(a, r) ? Get(a.slots.length, slot) : Get(a.plan_begin, r);
    for (int32_t i = 0; i < live; ++i) {
      Set(a.ids, tokens + i) = !IsDecode(a, r) ? Get(a.plan_tokens, first + i)
                               : i == 0        ? Get(a.slots.last_token, slot)
                                               : a.slots.drafts.As<int32_t>(slot)[i - 1];
      Set(a.positions, tokens + i) = begin + i;
      Set(a.token_slot, tokens + i) = slot;
    }
    Set(a.row_begin, r) = tokens;
    Set(a.row_count, r) = live;
    Set(a.logit_begin, r) = logits;
    tokens += live;
    for (int32_t i = 0; i < logit_vectors; ++i) {
      Set(a.logit_index, logits + i) = tokens - logit_vectors + i;
      Set(a.logit_ordinal, logits + i) = i;
    }
    logits += logit_vectors;
  }
  Set(a.row_begin, rows) = Set(a.live_tokens, 0) = tokens;
  Set(a.logit_begin, rows) = logits;
  Set(a.absorbed_live, 0) = tokens - static_cast<int32_t>(a.expanded_tokens);
  for (int64_t pass = 0; pass < a.pass_live.dim(0); ++pass) {
    Set(a.pass_live, pass) = static_cast<int32_t>(
        std::clamp<int64_t>(logits - pass * a.pass_vectors, 0, a.pass_vectors));
  }
}

}  // namespace fathom
