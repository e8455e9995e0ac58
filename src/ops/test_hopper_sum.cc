#include "ops/test_hopper_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "quant/e4m3.h"

namespace fathom {
namespace {

constexpr int kAtOnce = 32, kFraction = 13, kSmallest = -12;  // kSmallest: exponent of a product

int Exponent(uint8_t code) {
  return std::max(code >> 3 & 15, 1) - 7;
}
float Power(int exponent) {  // of two; normal
  return std::bit_cast<float>((exponent + 127) << 23);
}

}  // namespace

float HopperSum(std::span<const uint8_t> x, std::span<const uint8_t> w) {
  CHECK(x.size() == w.size());
  float sum = 0;
  for (size_t begin = 0; begin < x.size(); begin += kAtOnce) {
    const size_t end = std::min(x.size(), begin + kAtOnce);
    float products[kAtOnce] = {};  // exact
    int largest = sum == 0 ? kSmallest : std::ilogb(sum);
    for (size_t i = begin; i < end; ++i) {
      products[i - begin] = kE4M3Values[x[i]] * kE4M3Values[w[i]];
      if (products[i - begin] != 0) largest = std::max(largest, Exponent(x[i]) + Exponent(w[i]));
    }
    const float units = Power(kFraction - largest);
    auto cut = static_cast<int32_t>(sum * units);
    for (const float product : products) cut += static_cast<int32_t>(product * units);
    const int excess = std::bit_width(static_cast<uint32_t>(std::abs(cut))) - (kFraction + 1);
    if (excess > 0) cut -= cut % (1 << excess);
    sum = static_cast<float>(cut) / units;
  }
  return sum;
}

}  // namespace fathom
