// What the experts of all ranks made of a token, summed.
//   formula:       out[t] = sum over j in order of weights[t, j] y[t, j]
//   data mapping:  a thread takes pairs, which it writes into their ranks' work space; then tokens
//   bytes, FLOPs:  12 bytes and 2 FLOPs a channel of a pair
//   accumulator:   fp32, over j in order, as moe_experts sums
//   expected time: two meetings of the ranks, some 10 us where each has a core; not measured
#include "ops/combine/sum_outputs.h"
#include "ops/cpu_ops.h"
#include "parallel/shared_memory.h"

namespace fathom {

void CombineCpu(OpContext& context, const CombineArgs& a) {
  auto& ranks = static_cast<SharedMemoryCommunicator&>(*a.exchange.ranks);
  const auto inboxes = ranks.Meet(context.workspace.data());
  Pool(context).ParallelFor(
      Live(a.pair_live, a.pair_y.dim(0)), Grain(a.out.dim(1)),
      [&](int64_t begin, int64_t end, int) { SendOutputs(a, inboxes, begin, end); });
  ranks.Part();
  const auto* inbox = reinterpret_cast<const float*>(context.workspace.data());
  Pool(context).ParallelFor(
      TokensOfExchange(a), Grain(a.out.dim(1) * a.weights.dim(1) / 4),
      [&](int64_t begin, int64_t end, int) { SumOutputs(a, inbox, begin, end); });
}

}  // namespace fathom
