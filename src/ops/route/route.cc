#include "ops/check.h"

namespace fathom {

void Check(const RouteArgs& a) {
  CheckActivation("route: x", a.x, 2);
  CHECK(a.gate.rank() == 2 && a.ids.rank() == 2, "route: gate is {}, ids are {}", a.gate.ToString(),
        a.ids.ToString());
  const int64_t tokens = a.x.dim(0), hidden = a.x.dim(1);
  const int64_t experts = a.gate.dim(0), topk = a.ids.dim(1);
  CheckTensor("route: x", a.x, a.x.dtype(), {tokens, hidden});
  const bool wide = a.x.dtype() != DType::kBF16 || a.gate.dtype() != DType::kBF16;
  CheckTensor("route: gate", a.gate, wide ? DType::kF32 : DType::kBF16, {experts, hidden});
  if (!a.bias.absent()) CheckTensor("route: bias", a.bias, DType::kF32, {experts});
  CheckStrided("route: ids", a.ids, DType::kI32, {tokens, topk});
  CheckStrided("route: weights", a.weights, DType::kF32, {tokens, topk});
  CheckLive("route: live", a.live);
  CHECK(a.n_group >= 1 && experts % a.n_group == 0, "route: {} experts in {} groups", experts,
        a.n_group);
  CHECK(a.topk_group >= 1 && a.topk_group <= a.n_group, "route: {} of {} groups", a.topk_group,
        a.n_group);
  const int64_t eligible =
      a.selection == RouterSelection::kGreedy ? experts : experts / a.n_group * a.topk_group;
  CHECK(topk >= 1 && topk <= eligible, "route: the best {} of {} experts", topk, eligible);
  if (a.norm.absent()) return;
  Check(a.norm);
  CheckSame("route: norm.out", a.norm.out, a.x);
}

}  // namespace fathom
