// What the table of any GPU does, for the table of Hopper: `hopper` lets BF16 products take
// Hopper's kernels (products/hopper/bf16_gemm.h).
#pragma once

#include "ops/cuda_ops.h"
#include "products/cuda/quantize_rows.h"
#include "products/hopper/fp8_gemm.h"

namespace fathom {

// Whether this copy is made, and products read it.
bool ReadsQuantized(const Stream& stream, const QuantizedCopy& copy);
// Where one that is made goes; without codes: it is not.
QuantizedOut QuantizedOutOf(const Stream& stream, const QuantizedCopy& copy);
inline Fp8Rows Fp8RowsOf(const QuantizedCopy& copy) {
  return {.codes = static_cast<const uint8_t*>(copy.codes.data()),
          .scales = static_cast<const float*>(copy.scales.data()),
          .capacity = copy.codes.dim(0),
          .channels = copy.codes.dim(1),
          .scale_pitch = copy.scales.stride(0)};
}

void LinearPlain(OpContext&, const LinearArgs&, bool hopper);
void HeadLinearPlain(OpContext&, const HeadLinearArgs&, bool hopper);
void MlpPlain(OpContext&, const MlpArgs&, bool hopper);
void MoeExpertsPlain(OpContext&, const MoeExpertsArgs&, bool hopper);

// head_linear of the table of Hopper.
void HeadLinearHopper(OpContext&, const HeadLinearArgs&);

}  // namespace fathom
