#include "quant/e4m3.h"

#include <bit>

#include "base/check.h"

namespace fathom {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

constexpr float Decode(uint32_t code) {
  const uint32_t exponent = (code >> 3) & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>((code & 0x80) << 24 | 0x7fc00000);
  // A subnormal code counts steps of 2^-9.
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * 0x1p-9f
                              : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

constexpr std::array<float, 256> DecodeAll() {
  std::array<float, 256> values{};
  for (uint32_t code = 0; code < values.size(); ++code) values[code] = Decode(code);
  return values;
}

}  // namespace

constexpr std::array<float, 256> kE4M3Values = DecodeAll();

E4M3 ToE4M3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80, magnitude = bits & kMagnitude;
  uint32_t code;
  if (magnitude > kInfinity) {
    code = 0x7f;
  } else if (magnitude >= std::bit_cast<uint32_t>(kE4M3Max)) {
    code = 0x7e;
  } else if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Below the normal codes: the sum's last bits are |x| * 2^9 rounded to nearest even.
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p9f + 0x1p23f) & 15;
  } else {
    // Rounds off 20 mantissa bits; a carry moves on into the exponent. The biases differ by 120.
    code = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
  }
  return {static_cast<uint8_t>(sign | code)};
}

float RoundUpToPowerOfTwo(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  CHECK(bits >= 0x00800000 && bits < 0x80000000, "{} is not a positive normal number", x);
  if (bits >= kInfinity || (bits & 0x7fffff) == 0) return x;
  return std::bit_cast<float>((bits | 0x7fffff) + 1);
}

float QuantizeRun(std::span<const float> x, bool scale_ue8m0, uint8_t* q) {
  float largest = 1e-10f;
  for (const float value : x) {
    const float magnitude = std::fabs(value);
    // A NaN is taken, and then kept, because no comparison with it is true.
    if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;
  }
  float scale = largest / kE4M3Max;
  if (scale_ue8m0) scale = RoundUpToPowerOfTwo(scale);
  for (size_t i = 0; i < x.size(); ++i) q[i] = ToE4M3(x[i] / scale).bits;
  return scale;
}

}  // namespace fathom
