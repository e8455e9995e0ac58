// Root-mean-square norm.
//   formula:       residual += x, if there is one; out = x / sqrt(mean(x^2) + eps) weight
//   data mapping:  a thread takes tokens
//   bytes, FLOPs:  reads up to 12 and writes 4 to 8 bytes a channel; 5 FLOPs
//   accumulator:   fp32, 16 partial sums
//   expected time: [1, 7168]: some microseconds on one core; not measured
#include <cmath>

#include "ops/cpu_ops.h"

namespace fathom {

// In 16 partial sums, of the i that agree modulo 16, which the compiler keeps in vectors.
static float SumOfSquares(const float* x, int64_t n) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += x[i + j] * x[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) sums[j] += x[i + j] * x[i + j];
  for (int64_t half = kSums / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

static void NormToken(const RmsNormArgs& a, int64_t t) {
  const int64_t width = a.x.dim(1);
  const float* x = a.x.As<float>(t);
  if (!a.residual.absent()) {
    float* residual = a.residual.As<float>(t);
    for (int64_t i = 0; i < width; ++i) residual[i] += x[i];
    x = residual;
  }
  const float mean = SumOfSquares(x, width) / static_cast<float>(width);
  const float scale = 1.0f / std::sqrt(mean + a.eps);
  const float* weight = a.weight.As<float>();
  float* out = a.out.As<float>(t);
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

void RmsNormCpu(OpContext& context, const RmsNormArgs& a) {
  Pool(context).ParallelFor(Live(a.live, a.x.dim(0)), Grain(2 * a.x.dim(1)),
                            [&](int64_t begin, int64_t end, int) {
                              for (int64_t t = begin; t < end; ++t) NormToken(a, t);
                            });
}

}  // namespace fathom
