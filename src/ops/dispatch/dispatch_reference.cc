#include "ops/dispatch/pairs_of_ranks.h"
#include "ops/reference_ops.h"

namespace fathom {

void DispatchReference(OpContext&, const DispatchArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.exchange.ranks);
  const SentTokens sent(a.exchange, *a.live.As<int32_t>());
  const auto all = ranks.Meet(PiecesOf(a, sent), BoundsOfPieces(a));
  if (all.empty()) return;
  CopyTokens(a, all, 0, ListPairs(a, all));
  ranks.Part();
}

}  // namespace fathom
