#include <algorithm>

#include "ops/reference_ops.h"
#include "ops/synthetic_acceptance.h"

namespace fathom {

void VerifyDraftsReference(OpContext&, const VerifyDraftsArgs& a) {
  const int32_t* logits = a.logit_begin.As<int32_t>();
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r], vectors = logits[r + 1] - logits[r];
    CHECK(slot >= 0 && slot < a.slots.drafts.dim(0) && vectors <= a.slots.drafts.dim(1) + 1 &&
              logits[r + 1] <= a.sampled.dim(0),
          "verify_drafts: row {} is of slot {}, logit vectors [{}, {})", r, slot, logits[r],
          logits[r + 1]);
    const int32_t *sampled = a.sampled.As<int32_t>() + logits[r],
                  *drafts = a.slots.drafts.As<int32_t>(slot);
    const int32_t length = a.slots.length.As<int32_t>()[slot];
    const auto stands = [&](int32_t draft) {
      if (a.synthetic_acceptance < 0) return sampled[draft] == drafts[draft];
      return sampled[draft] >= 0 &&
             StandsByChance(a.synthetic_acceptance, slot, length + draft + 1);
    };
    int32_t stand = std::min(vectors, 1);
    while (stand < vectors && stands(stand - 1)) ++stand;
    a.row_count.As<int32_t>()[r] -= vectors - stand;
  }
}

}  // namespace fathom
