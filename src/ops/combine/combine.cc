#include "ops/check.h"

namespace fathom {

void Check(const CombineArgs& a) {
  const ExpertExchange& e = a.exchange;
  CHECK(e.ranks != nullptr && e.first >= 0 && e.each > 0 && e.offset >= 0 && e.offset < e.stride,
        "combine: {} tokens from {} on, {} of {}", e.each, e.first, e.offset, e.stride);
  CheckActivation("combine: out", a.out, 2);
  CheckActivation("combine: pair_y", a.pair_y, 2);
  CHECK(a.weights.rank() == 2, "combine: weights are {}", a.weights.ToString());
  const int64_t tokens = a.out.dim(0), hidden = a.out.dim(1), pairs = a.pair_y.dim(0);
  CheckTensor("combine: pair_y", a.pair_y, a.out.dtype(), {pairs, hidden});
  CheckTensor("combine: pair_origin", a.pair_origin, DType::kI32, {pairs});
  CheckLive("combine: pair_live", a.pair_live);
  CheckTensor("combine: weights", a.weights, DType::kF32, {tokens, a.weights.dim(1)});
  CheckTensor("combine: ids", a.ids, DType::kI32, {tokens, a.weights.dim(1)});
  CheckLive("combine: live", a.live);
  CheckTensor("combine: out", a.out, a.out.dtype(), {tokens, hidden});
}

}  // namespace fathom
