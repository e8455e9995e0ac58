// What the L2 does with what is read: policies for loads.
#pragma once

#include <cstdint>

namespace fathom {

// For TMA, in the encoding that CUTLASS names (cute/arch/copy_sm90_desc.hpp, CacheHintSm90). With
// policies that `createpolicy` makes, TMA reads the L2 at two thirds of the rate
// (docs/lab/fp8-gemm.md).
inline constexpr uint64_t kTmaEvictNormal = 0x1000000000000000, kTmaEvictFirst = 0x12f0000000000000;

// For cp.async, of any GPU from sm_80 on.
__device__ __forceinline__ uint64_t CpAsyncEvictFirst() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace fathom
