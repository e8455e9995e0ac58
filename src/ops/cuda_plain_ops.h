// What the table of any GPU does, for the table of Hopper: `hopper` lets BF16 products take
// Hopper's kernels (linear/bf16_gemm_cuda.h).
#pragma once

#include "ops/cuda_ops.h"
#include "ops/linear/quantize_rows_cuda.h"

namespace fathom {

// Whether this copy is made, and products read it.
bool ReadsQuantized(const Stream& stream, const QuantizedCopy& copy);
// Where one that is made goes; without codes: it is not.
QuantizedOut QuantizedOutOf(const Stream& stream, const QuantizedCopy& copy);

void LinearPlain(OpContext&, const LinearArgs&, bool hopper);
void HeadLinearPlain(OpContext&, const HeadLinearArgs&, bool hopper);
void MlpPlain(OpContext&, const MlpArgs&, bool hopper);
void MoeExpertsPlain(OpContext&, const MoeExpertsArgs&, bool hopper);

// head_linear of the table of Hopper.
void HeadLinearHopper(OpContext&, const HeadLinearArgs&);

}  // namespace fathom
