#include "ops/all_reduce_norm/sum_parts.h"
#include "ops/reference_ops.h"

namespace fathom {

void AllReduceNormReference(OpContext& context, const AllReduceNormArgs& a) {
  auto& ranks = static_cast<MeetingRanks&>(*a.ranks);
  const int64_t tokens = *a.norm.live.As<int32_t>();
  const auto parts = ranks.Meet({PieceOf(a.norm.x, 0, tokens)},
                                [&](int, size_t) { return BoundsOfParts(a, tokens); });
  if (parts.empty()) return;
  SumParts(a, parts, 0, tokens);
  ranks.Part();
  RmsNormReference(context, NormOfSum(a));
}

}  // namespace fathom
