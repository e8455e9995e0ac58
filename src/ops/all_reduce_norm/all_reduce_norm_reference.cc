#include "ops/all_reduce_norm/sum_parts.h"
#include "ops/reference_ops.h"
#include "parallel/shared_memory.h"

namespace fathom {

void AllReduceNormReference(OpContext& context, const AllReduceNormArgs& a) {
  auto& ranks = static_cast<SharedMemoryCommunicator&>(*a.ranks);
  SumParts(a, ranks.Meet(a.norm.x.data()), 0, *a.norm.live.As<int32_t>());
  ranks.Part();
  RmsNormReference(context, NormOfSum(a));
}

}  // namespace fathom
