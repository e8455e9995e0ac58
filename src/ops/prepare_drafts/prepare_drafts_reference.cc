#include <algorithm>

#include "ops/reference_ops.h"

namespace fathom {

void PrepareDraftsReference(OpContext&, const PrepareDraftsArgs& a) {
  const int32_t *begin = a.row_begin.As<int32_t>(), *logits = a.logit_begin.As<int32_t>();
  const int32_t* ids = a.ids.As<int32_t>();
  int32_t drafts = 0;
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r], end = begin[r + 1];
    const int32_t vectors = logits[r + 1] - logits[r];
    CHECK(slot >= 0 && slot < a.slots.history.dim(0) && end <= a.ids.dim(0) &&
              logits[r + 1] <= a.sampled.dim(0),
          "prepare_drafts: row {} is tokens [{}, {}) of slot {}, logit vectors [{}, {})", r,
          begin[r], end, slot, logits[r], logits[r + 1]);
    for (int32_t t = begin[r]; t < end; ++t) {
      int32_t& next = a.next_ids.As<int32_t>()[t];
      const int32_t behind = a.positions.As<int32_t>()[t] + 1;
      if (t >= end - vectors) {
        next = std::max(0, a.sampled.As<int32_t>()[logits[r + 1] - (end - t)]);
      } else if (t + 1 < end) {
        next = ids[t + 1];
      } else {
        CHECK(behind < a.slots.history.dim(1), "prepare_drafts: position {}", behind);
        next = a.slots.history.As<int32_t>(slot)[behind];
      }
    }
    a.slots.num_drafts.As<int32_t>()[slot] = 0;
    if (vectors == 0 || a.slots.ended.As<int32_t>()[slot] != 0) continue;
    a.draft_slot.As<int32_t>()[drafts] = slot;
    a.draft_index.As<int32_t>()[drafts++] = begin[r] + a.row_count.As<int32_t>()[r] - 1;
  }
  *a.live_drafts.As<int32_t>() = drafts;
  for (int64_t pass = 0; pass < a.pass_live.dim(0); ++pass) {
    a.pass_live.As<int32_t>()[pass] = static_cast<int32_t>(
        std::clamp<int64_t>(drafts - pass * a.pass_vectors, 0, a.pass_vectors));
  }
}

}  // namespace fathom
