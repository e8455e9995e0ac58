#include <algorithm>
#include <span>

#include "ops/reference_ops.h"

namespace fathom {
namespace {

// Where the text's last tokens stood before, as far as `lookup` says: the end of the match; 0: they
// did not.
size_t FindLastTokens(std::span<const int32_t> text, const NgramLookup& lookup) {
  size_t best_end = 0, best = static_cast<size_t>(lookup.least);
  for (size_t end = 1; end < text.size(); ++end) {
    const size_t most = std::min(end, static_cast<size_t>(lookup.most));
    size_t alike = 0;
    while (alike < most && text[end - 1 - alike] == text[text.size() - 1 - alike]) ++alike;
    if (alike >= best) best = alike, best_end = end;
  }
  return best_end;
}

}  // namespace

void ProposeNgramReference(OpContext&, const ProposeNgramArgs& a) {
  const int32_t *begin = a.row_begin.As<int32_t>(), *logits = a.logit_begin.As<int32_t>();
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r], tokens = begin[r + 1] - begin[r];
    const int32_t vectors = logits[r + 1] - logits[r];
    CHECK(slot >= 0 && slot < a.slots.drafts.dim(0) && begin[r + 1] <= a.positions.dim(0) &&
              logits[r + 1] <= a.sampled.dim(0),
          "propose_ngram: row {} is tokens [{}, {}) of slot {}, logit vectors [{}, {})", r,
          begin[r], begin[r + 1], slot, logits[r], logits[r + 1]);
    int32_t& count = a.slots.num_drafts.As<int32_t>()[slot];
    count = 0;
    if (vectors == 0 || a.slots.ended.As<int32_t>()[slot] != 0) continue;
    const int32_t drawn = a.row_count.As<int32_t>()[r] - (tokens - vectors);
    const int32_t size =
        a.slots.length.As<int32_t>()[slot] + 1;  // of the text, with what was drawn
    CHECK(drawn >= 1 && size <= a.slots.history.dim(1), "propose_ngram: {} drawn, {} tokens of {}",
          drawn, size, a.slots.history.dim(1));
    int32_t* text = a.slots.history.As<int32_t>(slot);
    std::copy_n(a.sampled.As<int32_t>() + logits[r], drawn, text + size - drawn);
    const size_t end = FindLastTokens({text, static_cast<size_t>(size)}, a.lookup);
    if (end == 0) continue;
    count = static_cast<int32_t>(
        std::min<int64_t>(a.slots.drafts.dim(1), size - static_cast<int64_t>(end)));
    std::copy_n(text + end, count, a.slots.drafts.As<int32_t>(slot));
  }
}

}  // namespace fathom
