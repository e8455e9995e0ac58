#include "ops/combine/sum_outputs.h"
#include "ops/reference_ops.h"

namespace fathom {

size_t CombineReferenceWorkspace(const Stream&, const CombineArgs& a) {
  return InboxBytes(a);
}

void CombineReference(OpContext& context, const CombineArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.exchange.ranks);
  const auto all = ranks.Meet(PiecesOf(a), BoundsOfPieces(a));
  if (all.empty()) return;
  auto* inbox = reinterpret_cast<float*>(context.workspace.data());
  for (const MeetingRanks::Pieces& from : all) TakeOutputs(a, from, 0, PairsIn(from), inbox);
  ranks.Part();
  SumOutputs(a, inbox, 0, TokensOfExchange(a));
}

}  // namespace fathom
