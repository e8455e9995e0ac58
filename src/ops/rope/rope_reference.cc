#include "ops/reference_ops.h"

namespace fathom {

void RopeReference(OpContext&, const RopeArgs& a) {
  const int64_t half = a.x.dim(2) / 2;
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const int32_t position = a.positions.As<int32_t>()[t];
    CHECK(position >= 0 && position < a.cos_sin.dim(0), "rope: position {} of {}", position,
          a.cos_sin.dim(0));
    const float *cos = a.cos_sin.Row<float>(position), *sin = cos + half;
    for (int64_t h = 0; h < a.x.dim(1); ++h) {
      float* x = a.x.Row<float>(t) + h * a.x.stride(1);
      for (int64_t i = 0; i < half; ++i) {
        const float even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * cos[i] - odd * sin[i];
        x[2 * i + 1] = even * sin[i] + odd * cos[i];
      }
    }
  }
}

}  // namespace fathom
