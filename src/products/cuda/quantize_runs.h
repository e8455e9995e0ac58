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

// Quantises the first *live * live_factor rows of x as QuantizeRun of quant/e4m3.h does, to the
// bit.
template <class T>
struct QuantizeRunsParams {
  const T* x = nullptr;  // BF16 or F32 [rows, in], rows `stride` apart
  int64_t stride = 0;
  int64_t rows = 0;  // capacity
  const int32_t* live = nullptr;
  int64_t live_factor = 1;
  QuantizedRows out;
};
template <class T>
void LaunchQuantizeRuns(cudaStream_t stream, const CudaWeight& weight,
                        const QuantizeRunsParams<T>& params);

}  // namespace fathom
