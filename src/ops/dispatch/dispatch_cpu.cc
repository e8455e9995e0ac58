// Tokens to the ranks that have their experts.
//   formula:       pair_x[p] = x[t] of the rank and the token that the pair is of
//   data mapping:  one thread lists this rank's pairs, then a thread takes pairs; each rank reads
//                  the others' memory
//   bytes, FLOPs:  reads and writes 4 bytes a channel of a pair; no arithmetic
//   accumulator:   none
//   expected time: two meetings of the ranks, some 10 us where each has a core; not measured
#include "ops/cpu_ops.h"
#include "ops/dispatch/pairs_of_ranks.h"

namespace fathom {

void DispatchCpu(OpContext& context, const DispatchArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.exchange.ranks);
  const SentTokens sent(a.exchange, *a.live.As<int32_t>());
  const auto all = ranks.Meet(PiecesOf(a, sent), BoundsOfPieces(a));
  if (all.empty()) return;
  Pool(context).ParallelFor(
      ListPairs(a, all), Grain(a.x.dim(1)),
      [&](int64_t begin, int64_t end, int) { CopyTokens(a, all, begin, end); });
  ranks.Part();
}

}  // namespace fathom
