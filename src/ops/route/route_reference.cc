#include "ops/reference_math.h"
#include "ops/reference_ops.h"
#include "ops/route/choose_experts.h"

namespace fathom {

size_t RouteReferenceWorkspace(const Stream&, const RouteArgs& a) {
  return (3 * a.gate.dim(0) + a.n_group) * sizeof(float);
}

void RouteReference(OpContext& context, const RouteArgs& a) {
  const int64_t experts = a.gate.dim(0);
  float* floats = reinterpret_cast<float*>(context.workspace.data());
  const RouteScratch scratch = {
      .scores = floats,
      .choice = floats + experts,
      .groups = floats + 2 * experts,
      .order = reinterpret_cast<int32_t*>(floats + 2 * experts + a.n_group),
  };
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const float* x = a.x.As<float>(t);
    for (int64_t e = 0; e < experts; ++e) {
      scratch.scores[e] = Dot(x, a.gate.As<float>(e), a.gate.dim(1));
    }
    ChooseExperts(a, t, scratch);
  }
}

}  // namespace fathom
