// FP8 products of few tokens on Hopper (sm_90a) whose activations come quantised, with one large
// matrix: y = x W^T with the bits of LaunchFp8Gemm, or silu(gate) * up of the weights' two parts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "products/hopper/fp8_gemm.h"

namespace fathom {

inline constexpr int64_t kFp8FewCodesTokens = 8;

struct Fp8FewCodesParams {
  Fp8Tokens x;                    // capacity at most kFp8FewCodesTokens
  const int32_t* live = nullptr;  // [1]: tokens, on the device
  Fp8Weights w;                   // Fp8FewCodesFit
  void* y = nullptr;              // [tokens, part_out]: BF16; of two parts F32, silu(gate) * up
  int64_t y_stride = 0;           // elements
};
void LaunchFp8FewCodes(const Fp8FewCodesParams& params, cudaStream_t stream);

// Whether it takes such weights: one matrix whose sums have one chain, of one part, or of gate and
// up, of a multiple of 512 channels, at most 20480, and a multiple of 16 outputs.
bool Fp8FewCodesFit(const Fp8Weights& weights);
// Whether it takes less time than LaunchFp8Gemm and LaunchFp8FewTokens; `quantized`: x is there,
// else it has to be quantised first.
bool Fp8FewCodesPays(const Fp8Weights& weights, int64_t tokens, bool quantized);

}  // namespace fathom
