// Quantisation of activations as the weights' scale tiles cut them, for the portable kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "products/cuda/cuda_weight.h"
#include "tensor/buffer.h"

namespace fathom {

// E4M3 codes [tokens, in] with scales [tokens, runs].
struct QuantizedTokens {
  E4M3* codes = nullptr;
  float* scales = nullptr;
};
QuantizedTokens QuantizedTokensIn(Arena& arena, const CudaWeight& weight, int64_t tokens);

// Quantises the first *live * live_factor tokens of x as QuantizeRun of quant/e4m3.h does, to the
// bit.
template <class T>
struct QuantizeRunsParams {
  const T* x = nullptr;  // BF16 or F32 [tokens, in], tokens `stride` apart
  int64_t stride = 0;
  int64_t tokens = 0;  // capacity
  const int32_t* live = nullptr;
  int64_t live_factor = 1;
  QuantizedTokens out;
};
template <class T>
void LaunchQuantizeRuns(cudaStream_t stream, const CudaWeight& weight,
                        const QuantizeRunsParams<T>& params);

}  // namespace fathom
