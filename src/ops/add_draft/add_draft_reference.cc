#include <algorithm>

#include "ops/reference_ops.h"

namespace fathom {

void AddDraftReference(OpContext&, const AddDraftArgs& a) {
  for (int32_t r = 0; r < *a.live.As<int32_t>(); ++r) {
    const int32_t slot = a.draft_slot.As<int32_t>()[r];
    CHECK(slot >= 0 && slot < a.slots.drafts.dim(0), "add_draft: row {} is of slot {}", r, slot);
    a.slots.drafts.As<int32_t>(slot)[a.drafts] = a.likeliest.As<int32_t>()[r];
    a.slots.num_drafts.As<int32_t>()[slot] = a.drafts + 1;
    a.positions.As<int32_t>()[r] = std::min(a.slots.length.As<int32_t>()[slot] + a.drafts,
                                            a.slots.final_length.As<int32_t>()[slot] - 2);
  }
}

}  // namespace fathom
