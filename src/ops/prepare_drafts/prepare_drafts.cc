#include "ops/check.h"

namespace fathom {

void Check(const PrepareDraftsArgs& a) {
  const SlotState& s = a.slots;
  CHECK(a.ids.rank() == 1 && a.row_slot.rank() == 1 && a.sampled.rank() == 1 &&
            s.history.rank() == 2 && a.pass_live.rank() == 1,
        "prepare_drafts: ids are {}, row_slot {}, sampled {}, slots.history {}, pass_live {}",
        a.ids.ToString(), a.row_slot.ToString(), a.sampled.ToString(), s.history.ToString(),
        a.pass_live.ToString());
  const int64_t tokens = a.ids.dim(0), rows = a.row_slot.dim(0), slots = s.history.dim(0);
  CHECK(a.pass_vectors >= 1 && a.pass_live.dim(0) * a.pass_vectors >= rows,
        "prepare_drafts: {} passes of {} for {} rows", a.pass_live.dim(0), a.pass_vectors, rows);
  CheckTensor("prepare_drafts: ids", a.ids, DType::kI32, {tokens});
  CheckTensor("prepare_drafts: positions", a.positions, DType::kI32, {tokens});
  CheckTensor("prepare_drafts: row_slot", a.row_slot, DType::kI32, {rows});
  CheckTensor("prepare_drafts: row_begin", a.row_begin, DType::kI32, {rows + 1});
  CheckTensor("prepare_drafts: logit_begin", a.logit_begin, DType::kI32, {rows + 1});
  CheckTensor("prepare_drafts: sampled", a.sampled, DType::kI32, {a.sampled.dim(0)});
  CheckTensor("prepare_drafts: row_count", a.row_count, DType::kI32, {rows});
  CheckLive("prepare_drafts: live_rows", a.live_rows);
  CheckTensor("prepare_drafts: slots.ended", s.ended, DType::kI32, {slots});
  CheckTensor("prepare_drafts: slots.num_drafts", s.num_drafts, DType::kI32, {slots});
  CheckTensor("prepare_drafts: slots.history", s.history, DType::kI32, {slots, s.history.dim(1)});
  CheckTensor("prepare_drafts: next_ids", a.next_ids, DType::kI32, {tokens});
  CheckTensor("prepare_drafts: draft_slot", a.draft_slot, DType::kI32, {rows});
  CheckTensor("prepare_drafts: draft_index", a.draft_index, DType::kI32, {rows});
  CheckLive("prepare_drafts: live_drafts", a.live_drafts);
  CheckTensor("prepare_drafts: pass_live", a.pass_live, DType::kI32, {a.pass_live.dim(0)});
}

}  // namespace fathom
