// Products of activations and weights of every format and shape, on any GPU from sm_80 on, without
// tensor cores: what those have no kernel for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "products/cuda/quantize_runs.h"

namespace fathom {

struct PlainProductParams {
  const PackedWeight* weight = nullptr;  // of CUDA; [count, out, in]
  // x: [tokens, in], or [tokens, count, in] with one matrix per head; strides in elements.
  const BF16* x = nullptr;
  int64_t x_stride = 0, x_head_stride = 0;
  QuantizedTokens quantized;      // instead of x, of one matrix of FP8
  int64_t tokens = 0;             // capacity
  const int32_t* live = nullptr;  // [1]: tokens
  void* y = nullptr;              // BF16, or F32
  int64_t y_stride = 0, y_head_stride = 0;
  bool f32 = false;
};
void LaunchPlainProduct(const PlainProductParams& params, cudaStream_t stream);

}  // namespace fathom
