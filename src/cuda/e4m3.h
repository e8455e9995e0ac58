// E4M3 and the scale of a run on the device: the same bits as quant/e4m3.h.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace fathom {

// Of a scale: not of infinity or NaN.
__device__ __forceinline__ bool IsFinite(float scale) {
  return scale < __int_as_float(0x7f800000);
}

// Scale of a run whose largest magnitude (a NaN if there is one) is `largest`.
__device__ __forceinline__ float RunScale(float largest, bool ue8m0) {
  const float bounded = largest < 1e-10f ? 1e-10f : largest;  // keeps NaN
  // bounded / 448 as Quotient divides; `fp8_gemm_check quantize` tries every finite number.
  constexpr float kMost = 448, kReciprocal = 1 / kMost;
  const float near = bounded * kReciprocal;
  const float quotient = fmaf(fmaf(-near, kMost, bounded), kReciprocal, near);
  const float scale = IsFinite(bounded) ? quotient : bounded;
  if (!ue8m0) return scale;
  const uint32_t bits = __float_as_uint(scale);
  if (bits >= 0x7f800000 || (bits & 0x7fffff) == 0) return scale;
  return __uint_as_float((bits | 0x7fffff) + 1);
}

// The greater magnitude; a NaN wins.
__device__ __forceinline__ float LargerMagnitude(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
  return larger;
}

// 1 / scale, correctly rounded, of a run's finite scale (every one is tried, as above): __frcp_rn
// without its branch for numbers that are no scales.
__device__ __forceinline__ float Reciprocal(float scale) {
  float near;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(scale));
  return fmaf(near, fmaf(-scale, near, 1.0f), near);
}

// a / scale without __fdiv_rn's branches: `reciprocal` is 1 / scale, correctly rounded, and one
// correction follows, as in Markstein 1990. That all codes are as of the right quotient was tried
// with every mantissa of a scale and the quotients next to each border between two codes.
// REQUIRES: a run's number and finite scale.
__device__ __forceinline__ float Quotient(float a, float scale, float reciprocal) {
  float q = a * reciprocal;
  q = fmaf(fmaf(-q, scale, a), reciprocal, q);
  return copysignf(q, a);  // of zero
}

__device__ __forceinline__ uint32_t TwoCodes(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

// QuantizeTwo where scale is finite.
__device__ __forceinline__ uint32_t QuantizeTwoFinite(float a, float b, float scale,
                                                      float reciprocal) {
  return TwoCodes(Quotient(a, scale, reciprocal), Quotient(b, scale, reciprocal));
}

// Codes of a / scale (low byte) and b / scale; `reciprocal`: __frcp_rn(scale).
__device__ __forceinline__ uint32_t QuantizeTwo(float a, float b, float scale, float reciprocal) {
  if (IsFinite(scale)) return QuantizeTwoFinite(a, b, scale, reciprocal);
  const float x = __fdiv_rn(a, scale), y = __fdiv_rn(b, scale);
  uint32_t codes = TwoCodes(x, y);
  // The division and the conversion lose the sign of a NaN, which QuantizeRun keeps; x86 gives
  // infinity over infinity the sign bit.
  const auto sign = [](float v) { return isnan(v) ? __float_as_uint(v) >> 24 & 0x80 : 0u; };
  if (isnan(x)) codes = (codes & 0xff00) | 0x7f | (isinf(a) && !isnan(scale) ? 0x80u : sign(a));
  if (isnan(y)) {
    codes = (codes & 0xff) | (0x7f | (isinf(b) && !isnan(scale) ? 0x80u : sign(b))) << 8;
  }
  return codes;
}

}  // namespace fathom
