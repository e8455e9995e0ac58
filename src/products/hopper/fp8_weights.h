// CUDA weights as the FP8 kernels of Hopper read them.
#pragma once

#include "products/cuda/cuda_weight.h"
#include "products/hopper/fp8_gemm.h"

namespace fathom {

// Whether they can: whole scale tiles, channels in multiples that TMA copies.
inline bool Fp8WeightsFit(const CudaWeight& w) {
  return w.quantize_activations && w.whole_tiles() && w.in % 16 == 0 && w.part_out % 16 == 0;
}
inline Fp8Weights Fp8WeightsOf(const CudaWeight& w) {
  return {.codes = reinterpret_cast<const uint8_t*>(w.values->data()),
          .scales = reinterpret_cast<const float*>(w.scales->data()),
          .count = w.count,
          .parts = w.parts,
          .part_out = w.part_out,
          .in = w.in};
}

}  // namespace fathom
