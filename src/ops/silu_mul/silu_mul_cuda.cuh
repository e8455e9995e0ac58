// silu(gate) * up, with silu(x) = x / (1 + exp(-x)), for kernels.
#pragma once

namespace fathom::kernels {

__device__ inline float SiluMul(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}

}  // namespace fathom::kernels
