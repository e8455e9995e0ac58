// Powers of two by one instruction: what lies below 2^-126 is flushed to zero.
#pragma once

namespace fathom {

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fathom
