#include <algorithm>

#include "ops/reference_ops.h"
#include "parallel/shared_memory.h"

namespace fathom {

void AllGatherReference(OpContext&, const AllGatherArgs& a) {
  auto& ranks = static_cast<SharedMemoryCommunicator&>(*a.ranks);
  const auto parts = ranks.Meet(a.x.data());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Share share = ShareOf(a.out.dim(1), a.unit, ranks.size(), rank);
    const float* from = static_cast<const float*>(parts[static_cast<size_t>(rank)]);
    if (from == a.out.data()) continue;  // in place
    for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
      std::copy_n(from + t * share.size(), share.size(), a.out.As<float>(t) + share.begin);
    }
  }
  ranks.Part();
}

}  // namespace fathom
