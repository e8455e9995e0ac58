// Weights of the CUDA table as the FP8 kernels of Hopper read them.
#pragma once

#include "ops/linear/fp8_gemm_cuda.h"
#include "ops/ops.h"
#include "ops/prepare/cuda_weight.h"

namespace fathom {

// Whether they can: whole scale tiles, channels and rows in multiples that TMA copies.
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

inline Fp8Rows Fp8RowsOf(const QuantizedCopy& copy) {
  return {.codes = static_cast<const uint8_t*>(copy.codes.data()),
          .scales = static_cast<const float*>(copy.scales.data()),
          .capacity = copy.codes.dim(0),
          .channels = copy.codes.dim(1),
          .scale_pitch = copy.scales.stride(0)};
}

}  // namespace fathom
