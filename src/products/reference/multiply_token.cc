#include "products/reference/multiply_token.h"

#include <algorithm>

namespace fathom {

void MultiplyToken(const ReferenceWeight& w, int64_t m, const float* x, float* y,
                   float* workspace) {
  const float* matrix = w.matrix(m);
  std::fill_n(y, w.out, 0.0f);
  if (!w.quantize_activations) {
    for (int64_t k = 0; k < w.in; ++k) {
      for (int64_t n = 0; n < w.out; ++n) y[n] += x[k] * matrix[k * w.out + n];
    }
    return;
  }
  float* sum = workspace + kScaleTile;
  for (int64_t run = 0; run < w.runs(); ++run) {
    const int64_t begin = w.run_begin(run), end = w.run_end(run);
    uint8_t* codes = reinterpret_cast<uint8_t*>(workspace);
    const float scale =
        QuantizeRun({x + begin, static_cast<size_t>(end - begin)}, w.scale_ue8m0, codes);
    std::fill_n(sum, w.out, 0.0f);
    for (int64_t k = begin; k < end; ++k) {
      const float q = ToFloat(E4M3{codes[k - begin]});
      for (int64_t n = 0; n < w.out; ++n) sum[n] += q * matrix[k * w.out + n];
    }
    const float* weight_scale = w.scales.data() + (m * w.runs() + run) * w.out;
    for (int64_t n = 0; n < w.out; ++n) y[n] += sum[n] * (scale * weight_scale[n]);
  }
}

}  // namespace fathom
