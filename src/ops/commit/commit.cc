#include "ops/check.h"

namespace fathom {

void Check(const CommitArgs& a) {
  const SlotState& s = a.slots;
  CHECK(a.row_slot.rank() == 1 && a.positions.rank() == 1 && a.sampled.rank() == 1 &&
            s.counts.rank() == 2 && s.stop_tokens.rank() == 2,
        "commit: row_slot is {}, positions {}, sampled {}, slots.counts {}, slots.stop_tokens {}",
        a.row_slot.ToString(), a.positions.ToString(), a.sampled.ToString(), s.counts.ToString(),
        s.stop_tokens.ToString());
  const int64_t rows = a.row_slot.dim(0), slots = s.counts.dim(0);
  CheckTensor("commit: row_slot", a.row_slot, DType::kI32, {rows});
  CheckTensor("commit: row_begin", a.row_begin, DType::kI32, {rows + 1});
  CheckTensor("commit: positions", a.positions, DType::kI32, {a.positions.dim(0)});
  CheckTensor("commit: logit_begin", a.logit_begin, DType::kI32, {rows + 1});
  CheckTensor("commit: sampled", a.sampled, DType::kI32, {a.sampled.dim(0)});
  CheckTensor("commit: row_count", a.row_count, DType::kI32, {rows});
  CheckLive("commit: live_rows", a.live_rows);
  CheckTensor("commit: slots.last_token", s.last_token, DType::kI32, {slots});
  CheckTensor("commit: slots.length", s.length, DType::kI32, {slots});
  CheckTensor("commit: slots.generated", s.generated, DType::kI32, {slots});
  CheckTensor("commit: slots.ended", s.ended, DType::kI32, {slots});
  CheckTensor("commit: slots.min_tokens", s.min_tokens, DType::kI32, {slots});
  CheckTensor("commit: slots.stop_tokens", s.stop_tokens, DType::kI32,
              {slots, s.stop_tokens.dim(1)});
  CheckTensor("commit: slots.counts", s.counts, DType::kI32, {slots, s.counts.dim(1)});
}

}  // namespace fathom
