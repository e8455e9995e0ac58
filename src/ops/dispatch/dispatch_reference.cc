#include "ops/dispatch/pairs_of_ranks.h"
#include "ops/reference_ops.h"
#include "parallel/shared_memory.h"

namespace fathom {

void DispatchReference(OpContext&, const DispatchArgs& a) {
  auto& ranks = static_cast<SharedMemoryCommunicator&>(*a.exchange.ranks);
  const auto all = ranks.Meet(&a);
  CopyTokens(a, all, 0, ListPairs(a, all));
  ranks.Part();
}

}  // namespace fathom
