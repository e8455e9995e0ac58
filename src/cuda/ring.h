// Which buffer of a ring in shared memory comes next, and in which phase its barriers are. For
// sm_90 and up.
#pragma once

#include <cstdint>

namespace fathom {

struct Ring {
  int32_t stages;
  int32_t index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fathom
