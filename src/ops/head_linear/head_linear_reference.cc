#include "ops/reference_ops.h"
#include "products/reference/multiply_token.h"

namespace fathom {

void HeadLinearReference(OpContext&, const HeadLinearArgs& a) {
  const ReferenceWeight& w = AsReference(a.weight);
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    for (int64_t h = 0; h < w.count; ++h) {
      MultiplyToken(w, h, a.x.As<float>(t) + h * a.x.stride(1),
                    a.out.As<float>(t) + h * a.out.stride(1), nullptr);
    }
  }
}

}  // namespace fathom
