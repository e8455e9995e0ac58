// The composition of linear, silu_mul and linear per chosen expert.
#include <algorithm>

#include "ops/reference_math.h"
#include "ops/reference_ops.h"
#include "products/reference/multiply_token.h"
#include "tensor/buffer.h"

namespace fathom {

namespace {

struct ExpertFloats {
  ExpertFloats(Arena& arena, const MoeExpertsArgs& a)
      : gate_up(arena.Allocate(DType::kF32, {2 * a.down->in}).As<float>()),
        product(arena.Allocate(DType::kF32, {a.down->in}).As<float>()),
        y(arena.Allocate(DType::kF32, {a.down->out}).As<float>()),
        multiply_token(arena
                           .Allocate(DType::kF32, {std::max(MultiplyTokenWorkspace(*a.gate_up),
                                                            MultiplyTokenWorkspace(*a.down))})
                           .As<float>()) {}

  float *gate_up, *product, *y, *multiply_token;
};

}  // namespace

size_t MoeExpertsReferenceWorkspace(const Stream&, const MoeExpertsArgs& a) {
  Arena arena = Arena::Measuring();
  ExpertFloats(arena, a);
  return arena.used();
}

void MoeExpertsReference(OpContext& context, const MoeExpertsArgs& a) {
  const int64_t inter = a.down->in, hidden = a.down->out, topk = a.ids.dim(1);
  Arena arena(context.workspace.data(), context.workspace.size());
  const auto [gate_up, product, y, workspace] = ExpertFloats(arena, a);
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    float* out = a.out.As<float>(t);
    std::fill_n(out, hidden, 0.0f);
    for (int64_t j = 0; j < topk; ++j) {
      const int32_t expert = a.ids.As<int32_t>(t)[j];
      CHECK(expert >= 0 && expert < a.down->count, "moe_experts: expert {} of {}", expert,
            a.down->count);
      MultiplyToken(AsReference(a.gate_up), expert, a.x.As<float>(t), gate_up, workspace);
      for (int64_t i = 0; i < inter; ++i) product[i] = SiluMul(gate_up[i], gate_up[inter + i]);
      MultiplyToken(AsReference(a.down), expert, product, y, workspace);
      for (int64_t i = 0; i < hidden; ++i) out[i] += a.weights.As<float>(t)[j] * y[i];
    }
  }
  if (!a.norm.absent()) RmsNormReference(context, a.norm);
}

}  // namespace fathom
