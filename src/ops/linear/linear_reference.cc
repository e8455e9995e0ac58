#include "ops/reference_ops.h"
#include "products/reference/multiply_token.h"

namespace fathom {

size_t LinearReferenceWorkspace(const Stream&, const LinearArgs& a) {
  return MultiplyTokenWorkspace(*a.weight) * sizeof(float);
}

void LinearReference(OpContext& context, const LinearArgs& a) {
  const ReferenceWeight& w = AsReference(a.weight);
  float* workspace = reinterpret_cast<float*>(context.workspace.data());
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    MultiplyToken(w, 0, a.x.As<float>(t), a.out.As<float>(t), workspace);
  }
}

}  // namespace fathom
