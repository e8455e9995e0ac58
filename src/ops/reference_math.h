// Scalar formulas that several ops of the reference table share.
#pragma once

#include <cmath>
#include <cstdint>

namespace fathom {

// The sum of a[i] b[i] in fp32: eight partial sums, of the i that agree modulo 8, each in ascending
// order; then those are added, from the first.
inline float Dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) sums[j] += a[i + j] * b[i + j];
  float sum = 0;
  for (float s : sums) sum += s;
  return sum;
}

inline float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// silu(gate) * up, with silu(x) = x sigmoid(x).
inline float SiluMul(float gate, float up) {
  return gate / (1.0f + std::exp(-gate)) * up;
}

// Whether a ranks above b: the greater number; a NaN ranks below every number.
inline bool RanksAbove(float a, float b) {
  return a > b || (std::isnan(b) && !std::isnan(a));
}

}  // namespace fathom
