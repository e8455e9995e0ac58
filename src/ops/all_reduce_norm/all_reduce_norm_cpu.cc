// The sum of all ranks' parts, and the norm that follows.
//   formula:       residual += the sum over ranks of x, in their order; then rms_norm of it
//   data mapping:  a thread takes tokens; each rank sums all of them, from the others' memory
//   bytes, FLOPs:  reads 4 (ranks + 1) and writes 4 bytes a channel, beside the norm; ranks FLOPs
//   accumulator:   fp32
//   expected time: two meetings of the ranks, some 10 us where each has a core; not measured
#include "ops/all_reduce_norm/sum_parts.h"
#include "ops/cpu_ops.h"

namespace fathom {

void AllReduceNormCpu(OpContext& context, const AllReduceNormArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.ranks);
  const int64_t tokens = Live(a.norm.live, a.norm.x.dim(0));
  const auto parts = ranks.Meet({PieceOf(a.norm.x, 0, tokens)},
                                [&](int, size_t) { return BoundsOfParts(a, tokens); });
  if (parts.empty()) return;
  Pool(context).ParallelFor(
      tokens, Grain(2 * ranks.size() * a.norm.x.dim(1)),
      [&](int64_t begin, int64_t end, int) { SumParts(a, parts, begin, end); });
  ranks.Part();
  RmsNormCpu(context, NormOfSum(a));
}

}  // namespace fathom
