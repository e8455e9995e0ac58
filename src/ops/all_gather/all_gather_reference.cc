#include <algorithm>

#include "ops/pieces.h"
#include "ops/reference_ops.h"

namespace fathom {

void AllGatherReference(OpContext&, const AllGatherArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.ranks);
  const int64_t tokens = *a.live.As<int32_t>();
  const auto all = ranks.Meet({PieceOf(a.x, 0, tokens)}, [&](int rank, size_t) {
    const Share share = ShareOf(a.out.dim(1), a.unit, ranks.size(), rank);
    return TokenBounds(tokens, a.out.dim(0), static_cast<size_t>(share.size()) * sizeof(float));
  });
  if (all.empty()) return;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Share share = ShareOf(a.out.dim(1), a.unit, ranks.size(), rank);
    const auto* from = As<float>(all[static_cast<size_t>(rank)][0]);
    if (from == a.out.data()) continue;  // in place
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(from + t * share.size(), share.size(), a.out.As<float>(t) + share.begin);
    }
  }
  ranks.Part();
}

}  // namespace fathom
