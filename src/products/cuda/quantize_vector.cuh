// Eight channels of activations in a thread, and their E4M3 codes: 16 neighbouring lanes hold a
// run.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/e4m3.h"
#include "cuda/warp.h"
#include "products/cuda/quantize_tokens.h"

namespace fathom {

inline constexpr int kVector = 8, kRunLanes = 128 / kVector;

struct Vector {
  float v[kVector];
};

__device__ __forceinline__ Vector Unpack(uint4 bits) {
  Vector x;
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x.v[2 * i] = __uint_as_float(words[i] << 16);
    x.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
  }
  return x;
}

// Rounded to BF16.
__device__ __forceinline__ uint4 Pack(const Vector& x) {
  const auto two = [&](int i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x.v[i], x.v[i + 1]);
    return reinterpret_cast<const uint32_t&>(pair);
  };
  return {two(0), two(2), two(4), two(6)};
}

__device__ __forceinline__ const uint4* AsVectors(const __nv_bfloat16* p) {
  return reinterpret_cast<const uint4*>(p);
}

// The scale of the run that 16 neighbouring lanes hold. Whole warps.
__device__ __forceinline__ float ScaleOf(const Vector& x, bool ue8m0) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = LargerMagnitude(largest, x.v[i]);
  for (int lanes = kRunLanes / 2; lanes > 0; lanes /= 2) {
    largest = LargerMagnitude(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  }
  return RunScale(largest, ue8m0);
}

// REQUIRES: a finite scale.
__device__ __forceinline__ uint2 CodesFinite(const Vector& x, float scale) {
  const float reciprocal = Reciprocal(scale);
  const auto two = [&](int i) { return QuantizeTwoFinite(x.v[i], x.v[i + 1], scale, reciprocal); };
  return {two(0) | two(2) << 16, two(4) | two(6) << 16};
}
__device__ __forceinline__ uint2 Codes(const Vector& x, float scale) {
  if (IsFinite(scale)) return CodesFinite(x, scale);  // a branch for eight numbers
  const float reciprocal = __frcp_rn(scale);
  const auto two = [&](int i) { return QuantizeTwo(x.v[i], x.v[i + 1], scale, reciprocal); };
  return {two(0) | two(2) << 16, two(4) | two(6) << 16};
}

// Writes the vector's codes, and its run's scale, to one token's.
__device__ __forceinline__ void StoreCodes(const QuantizedOut& out, int64_t token, int64_t width,
                                           int64_t vector, uint2 codes, float scale) {
  *reinterpret_cast<uint2*>(out.codes + token * width + vector * kVector) = codes;
  if (vector % kRunLanes == 0) out.scales[vector / kRunLanes * out.scale_pitch + token] = scale;
}

__device__ __forceinline__ Vector ReadVector(const __nv_bfloat16* p) {
  return Unpack(*AsVectors(p));
}
__device__ __forceinline__ Vector ReadVector(const float* p) {
  const float4 low = reinterpret_cast<const float4*>(p)[0];
  const float4 high = reinterpret_cast<const float4*>(p)[1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

}  // namespace fathom
