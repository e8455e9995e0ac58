#include "ops/check.h"

namespace fathom {

void Check(const ProposeNgramArgs& a) {
  const SlotState& s = a.slots;
  CHECK(
      a.row_slot.rank() == 1 && a.positions.rank() == 1 && a.sampled.rank() == 1 &&
          s.drafts.rank() == 2 && s.history.rank() == 2,
      "propose_ngram: row_slot is {}, positions {}, sampled {}, slots.drafts {}, slots.history {}",
      a.row_slot.ToString(), a.positions.ToString(), a.sampled.ToString(), s.drafts.ToString(),
      s.history.ToString());
  CHECK(
      a.lookup.least >= 1 && a.lookup.least <= a.lookup.most && a.lookup.most <= NgramLookup::kMost,
      "propose_ngram: matches of {} to {} tokens", a.lookup.least, a.lookup.most);
  const int64_t rows = a.row_slot.dim(0), slots = s.drafts.dim(0);
  CheckTensor("propose_ngram: row_slot", a.row_slot, DType::kI32, {rows});
  CheckTensor("propose_ngram: row_begin", a.row_begin, DType::kI32, {rows + 1});
  CheckTensor("propose_ngram: positions", a.positions, DType::kI32, {a.positions.dim(0)});
  CheckTensor("propose_ngram: logit_begin", a.logit_begin, DType::kI32, {rows + 1});
  CheckTensor("propose_ngram: sampled", a.sampled, DType::kI32, {a.sampled.dim(0)});
  CheckTensor("propose_ngram: row_count", a.row_count, DType::kI32, {rows});
  CheckLive("propose_ngram: live_rows", a.live_rows);
  CheckTensor("propose_ngram: slots.length", s.length, DType::kI32, {slots});
  CheckTensor("propose_ngram: slots.ended", s.ended, DType::kI32, {slots});
  CheckTensor("propose_ngram: slots.num_drafts", s.num_drafts, DType::kI32, {slots});
  CheckTensor("propose_ngram: slots.drafts", s.drafts, DType::kI32, {slots, s.drafts.dim(1)});
  CheckTensor("propose_ngram: slots.history", s.history, DType::kI32, {slots, s.history.dim(1)});
}

}  // namespace fathom
