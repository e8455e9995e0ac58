#include "ops/combine/sum_outputs.h"
#include "ops/reference_ops.h"
#include "parallel/shared_memory.h"

namespace fathom {

size_t CombineReferenceWorkspace(const Stream&, const CombineArgs& a) {
  return InboxBytes(a);
}

void CombineReference(OpContext& context, const CombineArgs& a) {
  auto& ranks = static_cast<SharedMemoryCommunicator&>(*a.exchange.ranks);
  SendOutputs(a, ranks.Meet(context.workspace.data()), 0, *a.pair_live.As<int32_t>());
  ranks.Part();
  SumOutputs(a, reinterpret_cast<const float*>(context.workspace.data()), 0, TokensOfExchange(a));
}

}  // namespace fathom
