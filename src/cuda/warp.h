// A warp's size, the mask of all its lanes, and what they share.
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

#ifdef __CUDACC__
// A value that is the same in all lanes, in a way that the compiler knows.
template <class V>
__device__ __forceinline__ V Uniform(V value) {
  return __shfl_sync(kAllLanes, value, 0);
}
#endif

}  // namespace fathom
