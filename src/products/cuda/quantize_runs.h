// Quantisation of activations as the weights' scale tiles cut them, for the portable kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "products/cuda/cuda_weight.h"

namespace fathom {

// E4M3 codes [rows, in] with scales [rows, runs].
struct QuantizedRows {
  E4M3* codes = nullptr;
  float* scales = nullptr;
};
size_t QuantizedRowsBytes(const CudaWeight& weight, int64_t rows);
QuantizedRows QuantizedRowsAt(const CudaWeight& weight, int64_t rows, std::byte* memory);

// Quantises the first *live * live_factor rows of x, [rows, in] with rows `stride` apart, as
// QuantizeRun of quant/e4m3.h does, to the bit.
void LaunchQuantizeRuns(cudaStream_t stream, const CudaWeight& weight, const BF16* x,
                        int64_t stride, int64_t rows, const int32_t* live, int64_t live_factor,
                        const QuantizedRows& out);
void LaunchQuantizeRuns(cudaStream_t stream, const CudaWeight& weight, const float* x,
                        int64_t stride, int64_t rows, const int32_t* live, int64_t live_factor,
                        const QuantizedRows& out);

}  // namespace fathom
