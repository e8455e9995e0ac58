// The composition of linear, silu_mul and linear per chosen expert.
#include <algorithm>

#include "ops/reference_math.h"
#include "ops/reference_ops.h"
#include "products/reference/multiply_token.h"

namespace fathom {

static int64_t ProductWorkspace(const MoeExpertsArgs& a) {
  return std::max(MultiplyTokenWorkspace(*a.gate_up), MultiplyTokenWorkspace(*a.down));
}

// Gate and up, their product, the expert's output, and what MultiplyToken needs.
size_t MoeExpertsReferenceWorkspace(const Stream&, const MoeExpertsArgs& a) {
  return (3 * a.down->in + a.down->out + ProductWorkspace(a)) * sizeof(float);
}

void MoeExpertsReference(OpContext& context, const MoeExpertsArgs& a) {
  const int64_t inter = a.down->in, hidden = a.down->out, topk = a.ids.dim(1);
  float* gate_up = reinterpret_cast<float*>(context.workspace.data());
  float *product = gate_up + 2 * inter, *y = product + inter, *workspace = y + hidden;
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
}

}  // namespace fathom
