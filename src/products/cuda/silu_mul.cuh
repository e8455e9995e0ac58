// silu(gate) * up, with silu(x) = x / (1 + exp(-x)), for kernels.
#pragma once

namespace fathom::kernels {

__device__ inline float SiluMul(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

}  // namespace fathom::kernels
