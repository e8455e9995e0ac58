#include <cmath>

#include "ops/reference_math.h"
#include "ops/reference_ops.h"

namespace fathom {

void RmsNormReference(OpContext&, const RmsNormArgs& a) {
  const int64_t width = a.x.dim(1);
  const float* weight = a.weight.As<float>();
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const float* x = a.x.As<float>(t);
    if (!a.residual.absent()) {
      float* residual = a.residual.As<float>(t);
      for (int64_t i = 0; i < width; ++i) residual[i] += x[i];
      x = residual;
    }
    const float scale = 1.0f / std::sqrt(Dot(x, x, width) / static_cast<float>(width) + a.eps);
    float* out = a.out.As<float>(t);
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
  }
}

}  // namespace fathom
