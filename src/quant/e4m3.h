// E4M3, the 8-bit float of FP8 weights and activations, and the scale that a run of values shares.
//
// The "FN" variant of the OCP 8-bit floating point specification: 1 sign, 4 exponent (bias 7) and 3
// mantissa bits; no infinity; NaN is 0x7f and 0xff; the largest magnitude is 448, the smallest
// 2^-9.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace fathom {

// Outputs and channels of an FP8 weight that share a scale (WeightFormat::kFp8), and channels of an
// activation that do.
inline constexpr int kScaleTile = 128;
inline constexpr float kE4M3Max = 448.0f;

// An E4M3 code.
struct E4M3 {
  uint8_t bits = 0;
};

// The value of every code.
extern const std::array<float, 256> kE4M3Values;
inline float ToFloat(E4M3 x) {
  return kE4M3Values[x.bits];
}
// Rounds to nearest, ties to even; magnitudes above 448 saturate (infinity too); NaN stays NaN with
// its sign. The same bits as torch's x.clamp(-448, 448).to(torch.float8_e4m3fn).
E4M3 ToE4M3(float x);

// The smallest power of two >= x. REQUIRES: x is a positive normal number, infinite or NaN.
float RoundUpToPowerOfTwo(float x);

// Quantises values that share one scale (128 channels of one token, fewer at a token's end):
//   scale = max(max|x|, 1e-10) / 448, rounded up to a power of two if `scale_ue8m0`;
//   q[i] = E4M3(x[i] / scale), a true division, so that every implementation gets the same bits.
// Returns the scale. A NaN anywhere makes the scale and every code NaN; an infinity makes the scale
// infinite, its own code NaN and the others zero. REQUIRES: room for x.size() codes at q.
float QuantizeRun(std::span<const float> x, bool scale_ue8m0, uint8_t* q);

}  // namespace fathom
