#include "ops/check.h"

namespace fathom {

void Check(const DispatchArgs& a) {
  const ExpertExchange& e = a.exchange;
  CHECK(e.ranks != nullptr && e.routed >= e.ranks->size(), "dispatch: {} experts", e.routed);
  CHECK(e.first >= 0 && e.each > 0 && e.offset >= 0 && e.offset < e.stride,
        "dispatch: {} tokens from {} on, {} of {}", e.each, e.first, e.offset, e.stride);
  CheckActivation("dispatch: x", a.x, 2);
  CHECK(a.ids.rank() == 2 && a.pair_ids.rank() == 2, "dispatch: ids are {} and {}",
        a.ids.ToString(), a.pair_ids.ToString());
  const int64_t tokens = a.x.dim(0), hidden = a.x.dim(1), pairs = a.pair_ids.dim(0);
  CheckTensor("dispatch: x", a.x, a.x.dtype(), {tokens, hidden});
  CheckTensor("dispatch: ids", a.ids, DType::kI32, {tokens, a.ids.dim(1)});
  CheckLive("dispatch: live", a.live);
  CheckTensor("dispatch: pair_x", a.pair_x, a.x.dtype(), {pairs, hidden});
  CheckTensor("dispatch: pair_ids", a.pair_ids, DType::kI32, {pairs, 1});
  CheckTensor("dispatch: pair_origin", a.pair_origin, DType::kI32, {pairs});
  CheckLive("dispatch: pair_live", a.pair_live);
}

}  // namespace fathom
