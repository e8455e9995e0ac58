// FP8 products of few rows on Hopper (sm_90a), as a decode step of a small batch has them: y = x
// W^T with x quantised on the way in, so that one kernel does what LaunchQuantizeRows and
// LaunchFp8Gemm do, to the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "products/hopper/fp8_gemm.h"

namespace fathom {

inline constexpr int64_t kFp8FewRows = 8;  // tokens of a launch, and rows of a matrix at a time
inline constexpr int64_t kFp8FewDenseRows = 4;  // of more, quantising first takes less time
inline constexpr int64_t kFp8MostPairs = 128;   // (token, chosen expert)

enum class Fp8FewRowsOutput : uint8_t {
  kBF16,
  kF32,
  kSilu,  // silu(gate) * up of the weights' two parts, F32 [.., part_out], not quantised
};

struct Fp8FewRowsParams {
  const void* x = nullptr;  // BF16, or F32 where `x_f32`; aligned to 16 bytes
  bool x_f32 = false;       // only with BF16 outputs
  int64_t x_stride = 0;     // elements; a multiple of 8
  bool scale_ue8m0 = false;
  int64_t tokens = 0;             // capacity, at most kFp8FewRows
  const int32_t* live = nullptr;  // [1]: tokens, on the device
  Fp8Weights w;

  // Of experts: pair p = t * topk + j multiplies with matrix ids[p], and its row of y is p. Its row
  // of x is p if `x_of_pairs`, else t. Null: one matrix, row t for token t.
  const int32_t* ids = nullptr;  // [tokens, topk], at most kFp8MostPairs
  int64_t topk = 1;
  bool x_of_pairs = false;
  // The launch before was of this function with the same ids: these are read before it has ended,
  // because it let this one begin when it had waited for them itself.
  bool early = false;

  Fp8FewRowsOutput output = Fp8FewRowsOutput::kBF16;
  void* y = nullptr;
  int64_t y_stride = 0;  // elements
};
void LaunchFp8FewRows(const Fp8FewRowsParams& params, cudaStream_t stream);

}  // namespace fathom
