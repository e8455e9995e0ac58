// What a server counts of its drafts, out of its metrics.
#pragma once

#include <optional>
#include <string_view>

namespace fathom {

struct DraftCounts {
  double decodes = 0;   // that verified drafts
  double proposed = 0;  // drafts
  double accepted = 0;  // of these

  double AcceptedShare() const { return proposed > 0 ? accepted / proposed : 0; }
  // Of a decode with drafts: those that stood, and the token behind them.
  double MeanTokens() const { return decodes > 0 ? 1 + accepted / decodes : 0; }

  friend DraftCounts operator-(const DraftCounts& a, const DraftCounts& b) {
    return {a.decodes - b.decodes, a.proposed - b.proposed, a.accepted - b.accepted};
  }
};

// From the text of /metrics, the series of all labels added up: vllm:spec_decode_num_drafts_total,
// ..._num_draft_tokens_total and ..._num_accepted_tokens_total. Nothing where one is missing.
std::optional<DraftCounts> ReadDraftCounts(std::string_view metrics);

}  // namespace fathom
