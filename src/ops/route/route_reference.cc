#include "ops/reference_math.h"
#include "ops/reference_ops.h"
#include "ops/route/choose_experts.h"
#include "tensor/buffer.h"

namespace fathom {

static RouteScratch Scratch(Arena& arena, const RouteArgs& a) {
  const int64_t experts = a.gate.dim(0);
  return {
      .scores = arena.Allocate(DType::kF32, {experts}).As<float>(),
      .choice = arena.Allocate(DType::kF32, {experts}).As<float>(),
      .groups = arena.Allocate(DType::kF32, {a.n_group}).As<float>(),
      .order = arena.Allocate(DType::kI32, {experts}).As<int32_t>(),
  };
}

size_t RouteReferenceWorkspace(const Stream&, const RouteArgs& a) {
  Arena arena = Arena::Measuring();
  Scratch(arena, a);
  return arena.used();
}

void RouteReference(OpContext& context, const RouteArgs& a) {
  if (!a.norm.absent()) RmsNormReference(context, a.norm);
  const int64_t experts = a.gate.dim(0);
  Arena arena(context.workspace.data(), context.workspace.size());
  const RouteScratch scratch = Scratch(arena, a);
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const float* x = a.x.As<float>(t);
    for (int64_t e = 0; e < experts; ++e) {
      scratch.scores[e] = Dot(x, a.gate.As<float>(e), a.gate.dim(1));
    }
    ChooseExperts(a, t, scratch);
  }
}

}  // namespace fathom
