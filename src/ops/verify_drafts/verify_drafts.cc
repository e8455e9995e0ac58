#include "ops/check.h"

namespace fathom {

void Check(const VerifyDraftsArgs& a) {
  CHECK(a.row_slot.rank() == 1 && a.sampled.rank() == 1 && a.slots.drafts.rank() == 2,
        "verify_drafts: row_slot is {}, sampled {}, slots.drafts {}", a.row_slot.ToString(),
        a.sampled.ToString(), a.slots.drafts.ToString());
  const int64_t rows = a.row_slot.dim(0);
  CheckTensor("verify_drafts: row_slot", a.row_slot, DType::kI32, {rows});
  CheckTensor("verify_drafts: logit_begin", a.logit_begin, DType::kI32, {rows + 1});
  CheckTensor("verify_drafts: sampled", a.sampled, DType::kI32, {a.sampled.dim(0)});
  CheckTensor("verify_drafts: row_count", a.row_count, DType::kI32, {rows});
  CheckLive("verify_drafts: live_rows", a.live_rows);
  CHECK(a.synthetic_acceptance <= 1, "verify_drafts: a share of {}", a.synthetic_acceptance);
  CheckTensor("verify_drafts: slots.length", a.slots.length, DType::kI32, {a.slots.drafts.dim(0)});
  CheckTensor("verify_drafts: slots.drafts", a.slots.drafts, DType::kI32,
              {a.slots.drafts.dim(0), a.slots.drafts.dim(1)});
}

}  // namespace fathom
