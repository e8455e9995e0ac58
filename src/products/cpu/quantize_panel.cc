#include "products/cpu/quantize_panel.h"

#include <cmath>

namespace fathom {
namespace {

constexpr float kInt4Range = 7.5f;  // of the codes' -8 to 7: what rounds to 8 is cut
constexpr int kMaxMultiplier = 15;

// Rounds to nearest even by addition, which vectorises: |x| < 2^22.
inline float Round(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}
inline float Reciprocal(float x) {
  return x > 0 && x < INFINITY ? 1.0f / x : 0.0f;
}

// Of each output over n channels; NaN if one is not finite.
void LargestMagnitudes(const float* values, int64_t n, float* largest) {
  float broken[kPanel] = {};
  for (int64_t o = 0; o < kPanel; ++o) largest[o] = 0;
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t o = 0; o < kPanel; ++o) {
      const float x = values[k * kPanel + o], magnitude = std::fabs(x);
      largest[o] = magnitude > largest[o] ? magnitude : largest[o];
      broken[o] += x * 0.0f;
    }
  }
  for (int64_t o = 0; o < kPanel; ++o) largest[o] += broken[o];
}

// code - zero of each output and channel of a sub-run with these steps; returns the squared errors.
void QuantizeSubRun(const float* values, const float* steps, float* codes, float* errors) {
  float inverse[kPanel];
  for (int64_t o = 0; o < kPanel; ++o) {
    inverse[o] = Reciprocal(steps[o]);
    errors[o] = 0;
  }
  for (int64_t k = 0; k < kSubRun; ++k) {
    for (int64_t o = 0; o < kPanel; ++o) {
      const float x = values[k * kPanel + o];
      float code = Round(x * inverse[o]);
      code = code < -8.0f ? -8.0f : code;
      code = code > 7.0f ? 7.0f : code;
      codes[k * kPanel + o] = code;
      const float error = x - code * steps[o];
      errors[o] += error * error;
    }
  }
}

}  // namespace

void QuantizePanelInt8(const float* values, int64_t n, uint8_t* to, float* scales) {
  float inverse[kPanel];
  LargestMagnitudes(values, n, scales);
  for (int64_t o = 0; o < kPanel; ++o) {
    scales[o] /= 127.0f;
    inverse[o] = Reciprocal(scales[o]);
  }
  for (int64_t k = 0; k < CpuWeight::RoundUp(n, kGroup); ++k) {
    uint8_t* group = to + k / kGroup * kGroup * kPanel + k % kGroup;
    for (int64_t o = 0; o < kPanel; ++o) {
      const float scaled = values[k * kPanel + o] * inverse[o];
      const float code = std::isfinite(scaled) ? Round(scaled) : 0.0f;
      group[o * kGroup] =
          static_cast<uint8_t>(static_cast<int32_t>(code) + WeightFormat::kInt8.zero);
    }
  }
}

void QuantizePanelInt4(const float* values, int64_t n, uint8_t* to, float* scales) {
  float run_largest[kPanel];
  LargestMagnitudes(values, n, run_largest);
  for (int64_t o = 0; o < kPanel; ++o) scales[o] = run_largest[o] / (kInt4Range * kMaxMultiplier);
  constexpr int64_t kHalf = kPanel / 2;
  uint8_t* const codes_at = to + kHalf * kSubRuns;
  for (int64_t sub = 0; sub < kSubRuns; ++sub) {
    const float* from = values + sub * kSubRun * kPanel;
    float largest[kPanel], best_errors[kPanel], best_codes[kSubRun * kPanel];
    uint8_t best_multipliers[kPanel];
    LargestMagnitudes(from, kSubRun, largest);
    for (int64_t o = 0; o < kPanel; ++o) best_errors[o] = INFINITY;
    for (int shift = -1; shift <= 1; ++shift) {
      float multipliers[kPanel], steps[kPanel], codes[kSubRun * kPanel], errors[kPanel];
      for (int64_t o = 0; o < kPanel; ++o) {
        const float nearest = Round(largest[o] / kInt4Range * Reciprocal(scales[o]));
        const float wanted = std::isfinite(nearest) ? nearest + static_cast<float>(shift) : 1.0f;
        multipliers[o] = std::fmin(std::fmax(wanted, 1.0f), kMaxMultiplier);
        steps[o] = multipliers[o] * scales[o];
      }
      QuantizeSubRun(from, steps, codes, errors);
      for (int64_t o = 0; o < kPanel; ++o) {
        // A NaN is quantised somehow: its scale says what it is.
        if (!(errors[o] < best_errors[o]) && shift > -1) continue;
        best_errors[o] = errors[o];
        best_multipliers[o] = static_cast<uint8_t>(multipliers[o]);
        for (int64_t k = 0; k < kSubRun; ++k) best_codes[k * kPanel + o] = codes[k * kPanel + o];
      }
    }
    for (int64_t o = 0; o < kHalf; ++o) {
      to[o * kSubRuns + sub] =
          static_cast<uint8_t>(best_multipliers[o] | best_multipliers[o + kHalf] << 4);
    }
    if (sub * kSubRun >= n) continue;  // no room beyond the run
    for (int64_t k = 0; k < kSubRun; ++k) {
      uint8_t* group = codes_at + (sub * kSubRun + k) / kGroup * kGroup * kHalf + k % kGroup;
      for (int64_t o = 0; o < kHalf; ++o) {
        const auto code = [&](int64_t output) {
          const float c = best_codes[k * kPanel + output];
          return static_cast<uint8_t>(static_cast<int32_t>(std::isfinite(c) ? c : 0.0f) +
                                      WeightFormat::kInt4.zero);
        };
        group[o * kGroup] = static_cast<uint8_t>(code(o) | code(o + kHalf) << 4);
      }
    }
  }
}

}  // namespace fathom
