#include "ops/check.h"

namespace fathom {

void Check(const AddDraftArgs& a) {
  const SlotState& s = a.slots;
  CHECK(a.draft_slot.rank() == 1 && s.drafts.rank() == 2, "add_draft: draft_slot is {}, drafts {}",
        a.draft_slot.ToString(), s.drafts.ToString());
  const int64_t rows = a.draft_slot.dim(0), slots = s.drafts.dim(0);
  CHECK(a.drafts >= 0 && a.drafts < s.drafts.dim(1), "add_draft: behind {} of at most {}", a.drafts,
        s.drafts.dim(1));
  CheckTensor("add_draft: draft_slot", a.draft_slot, DType::kI32, {rows});
  CheckTensor("add_draft: likeliest", a.likeliest, DType::kI32, {rows});
  CheckLive("add_draft: live", a.live);
  CheckTensor("add_draft: slots.length", s.length, DType::kI32, {slots});
  CheckTensor("add_draft: slots.final_length", s.final_length, DType::kI32, {slots});
  CheckTensor("add_draft: slots.num_drafts", s.num_drafts, DType::kI32, {slots});
  CheckTensor("add_draft: slots.drafts", s.drafts, DType::kI32, {slots, s.drafts.dim(1)});
  CheckTensor("add_draft: positions", a.positions, DType::kI32, {rows});
}

}  // namespace fathom
