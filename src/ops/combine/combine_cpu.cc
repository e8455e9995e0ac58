// What the experts of all ranks made of a token, summed.
//   formula:       out[t] = sum over j in order of weights[t, j] y[t, j]
//   data mapping:  a thread takes pairs of this rank's tokens from all ranks; then tokens
//   bytes, FLOPs:  12 bytes and 2 FLOPs a channel of a pair
//   accumulator:   fp32, over j in order, as moe_experts sums
//   expected time: two meetings of the ranks, some 10 us where each has a core; not measured
#include "ops/combine/sum_outputs.h"
#include "ops/cpu_ops.h"

namespace fathom {

void CombineCpu(OpContext& context, const CombineArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.exchange.ranks);
  const auto all = ranks.Meet(PiecesOf(a), BoundsOfPieces(a));
  if (all.empty()) return;
  auto* inbox = reinterpret_cast<float*>(context.workspace.data());
  for (const MeetingRanks::Pieces& from : all) {
    Pool(context).ParallelFor(
        PairsIn(from), Grain(a.out.dim(1)),
        [&](int64_t begin, int64_t end, int) { TakeOutputs(a, from, begin, end, inbox); });
  }
  ranks.Part();
  Pool(context).ParallelFor(
      TokensOfExchange(a), Grain(a.out.dim(1) * a.weights.dim(1) / 4),
      [&](int64_t begin, int64_t end, int) { SumOutputs(a, inbox, begin, end); });
}

}  // namespace fathom
