#include "products/cpu/quantize_panel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace fathom {
namespace {

// Of the three multipliers about the nearest, none has less error than the one that is stored.
TEST(QuantizePanelInt4, TakesTheBestOfThreeMultipliers) {
  constexpr int64_t kHalf = kPanel / 2;
  Rng rng(5);
  std::vector<float> values(kScaleTile * kPanel);
  for (float& value : values) value = rng.Normal();
  std::vector<uint8_t> packed(kHalf * kSubRuns + kScaleTile * kHalf);
  float scales[kPanel];
  QuantizePanelInt4(values.data(), kScaleTile, packed.data(), scales);
  int taken[3] = {};
  for (int64_t o = 0; o < kPanel; ++o) {
    for (int64_t sub = 0; sub < kSubRuns; ++sub) {
      const auto value = [&](int64_t k) { return values[(sub * kSubRun + k) * kPanel + o]; };
      const auto error = [&](int multiplier) {
        const double step = double{scales[o]} * multiplier;
        double sum = 0;
        for (int64_t k = 0; k < kSubRun; ++k) {
          const double code = std::clamp(std::nearbyint(value(k) / step), -8.0, 7.0);
          sum += (value(k) - code * step) * (value(k) - code * step);
        }
        return sum;
      };
      float largest = 0;
      for (int64_t k = 0; k < kSubRun; ++k) largest = std::max(largest, std::abs(value(k)));
      const int nearest = static_cast<int>(std::nearbyint(largest / 7.5 / scales[o]));
      const int both = packed[static_cast<size_t>(o % kHalf * kSubRuns + sub)];
      const int stored = o < kHalf ? both % 16 : both / 16;
      ASSERT_LE(std::abs(stored - nearest), 1);
      for (int shift = -1; shift <= 1; ++shift) {
        const int other = std::clamp(nearest + shift, 1, 15);
        EXPECT_LE(error(stored), error(other) * 1.0001) << stored << " and " << other;
      }
      ++taken[stored - nearest + 1];
    }
  }
  for (const int times : taken) EXPECT_GT(times, 0);
}

}  // namespace
}  // namespace fathom
