// FP8 products of few tokens on Hopper (sm_90a), as a decode step of a small batch has them: y = x
// W^T with x quantised on the way in, so that one kernel does what LaunchQuantizeTokens and
// LaunchFp8Gemm do, to the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "products/hopper/fp8_gemm.h"

namespace fathom {

inline constexpr int64_t kFp8FewTokens = 8;       // tokens of a launch, and of a matrix at a time
inline constexpr int64_t kFp8FewDenseTokens = 4;  // of a dense launch: more are quantised first
inline constexpr int64_t kFp8MostPairs = 128;     // (token, chosen expert)

enum class Fp8FewTokensOutput : uint8_t {
  kBF16,
  kF32,
  kSilu,  // silu(gate) * up of the weights' two parts, F32 [.., part_out], not quantised
};

struct Fp8FewTokensParams {
  const void* x = nullptr;  // BF16, or F32 where `x_f32`; aligned to 16 bytes
  bool x_f32 = false;       // only with BF16 outputs
  int64_t x_stride = 0;     // elements; a multiple of 8
  bool scale_ue8m0 = false;
  int64_t tokens = 0;             // capacity, at most kFp8FewTokens
  const int32_t* live = nullptr;  // [1]: tokens, on the device
  Fp8Weights w;

  // Of experts (gate and up, of BF16, or down, of F32): pair p = t * topk + j multiplies with
  // matrix ids[p], and makes y[p]. It reads x[p] if `x_of_pairs`, else x[t]. Null: one matrix, y[t]
  // for token t.
  const int32_t* ids = nullptr;  // [tokens, topk], at most kFp8MostPairs
  int64_t topk = 1;
  int64_t shared = 0;  // each token's last ids, the last matrices': loaded before ids are there
  bool x_of_pairs = false;
  // The launch before was of this function with the same ids: these are read before it has ended,
  // because it let this one begin when it had waited for them itself.
  bool early = false;

  Fp8FewTokensOutput output = Fp8FewTokensOutput::kBF16;
  void* y = nullptr;
  int64_t y_stride = 0;  // elements
};
void LaunchFp8FewTokens(const Fp8FewTokensParams& params, cudaStream_t stream);

// Whether blocks hold all of such weights of a dense product before x is there: then it takes less
// time than LaunchFp8Gemm, even where x comes quantised.
bool Fp8FewTokensHolds(const Fp8Weights& weights);

}  // namespace fathom
