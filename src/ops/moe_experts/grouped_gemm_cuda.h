// Experts in FP8 on Hopper: pairs (token, chosen expert) sorted by expert, one grouped product with
// SiLU and quantisation behind it, a second one, and the sum over each token's experts. BF16
// experts have their pairs sorted, gathered and summed by the same kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/ops.h"
#include "products/hopper/fp8_gemm.h"

namespace fathom {

inline constexpr int64_t kMostExperts = 512;

// The pairs of `live` tokens in order of their expert. Which of an expert's pairs comes first is
// left open: no result depends on it.
struct SortPairsParams {
  const int32_t* ids = nullptr;   // [tokens, topk], in [0, experts)
  const int32_t* live = nullptr;  // [1]: tokens, on the device
  int64_t tokens = 0;             // capacity
  int32_t topk = 0;
  int32_t experts = 0;        // at most kMostExperts
  int32_t* counts = nullptr;  // [experts], out
  int32_t* begins = nullptr;  // [experts], out: each expert's first pair
  int32_t* places = nullptr;  // [tokens, topk], out: where each pair comes
  bool on_hopper = false;     // blocks of a cluster share many pairs
};
void LaunchSortPairs(const SortPairsParams& params, cudaStream_t stream);

// x_of_pairs[places[t, j]] = x[t].
struct GatherPairsParams {
  const __nv_bfloat16* x = nullptr;  // [tokens, hidden], tokens `stride` apart
  int64_t stride = 0;                // a multiple of 8
  const int32_t* places = nullptr;   // [tokens, topk]
  const int32_t* live = nullptr;     // [1]: tokens, on the device
  int64_t tokens = 0;                // capacity
  int32_t topk = 0;
  int64_t hidden = 0;                   // a multiple of 8
  __nv_bfloat16* x_of_pairs = nullptr;  // [tokens * topk, hidden]
};
void LaunchGatherPairs(const GatherPairsParams& params, cudaStream_t stream);

// out[t] = sum over j in order of weights[t, j] * y[places[t, j]], in fp32.
struct CombineParams {
  const __nv_bfloat16* y = nullptr;  // [tokens * topk, hidden]
  const int32_t* places = nullptr;   // [tokens, topk]; null: t * topk + j
  const float* weights = nullptr;    // [tokens, topk]
  const int32_t* live = nullptr;     // [1]: tokens, on the device
  int64_t tokens = 0;                // capacity
  int32_t topk = 0;
  int64_t hidden = 0;            // a multiple of 8
  __nv_bfloat16* out = nullptr;  // [tokens, hidden]
};
// `norm`: of out, which is then not written if one kernel does both; or absent.
void LaunchCombine(const CombineParams& params, const RmsNormArgs& norm, cudaStream_t stream);

// out[t] = sum over j of weights[t, j] * down[e](silu(gate[e] x) * up[e] x), e = ids[t, j]
// (MoeExpertsArgs, ops.h), both products in FP8.
struct Fp8ExpertsParams {
  const __nv_bfloat16* x = nullptr;  // [tokens, hidden], tokens `x_stride` apart
  int64_t x_stride = 0;              // a multiple of 8
  const int32_t* ids = nullptr;      // [tokens, topk]
  const float* weights = nullptr;    // [tokens, topk]
  const int32_t* live = nullptr;     // [1]: tokens, on the device
  int64_t tokens = 0;                // capacity
  int32_t topk = 0, shared = 0;
  Fp8Weights gate_up;  // [experts, 2 parts of inter, hidden]
  Fp8Weights down;     // [experts, hidden, inter]
  bool scale_ue8m0 = false;
  __nv_bfloat16* out = nullptr;    // [tokens, hidden]
  RmsNormArgs norm;                // as MoeExpertsArgs has it
  std::span<std::byte> workspace;  // Fp8ExpertsWorkspace bytes, aligned to 256
};
size_t Fp8ExpertsWorkspace(const Fp8ExpertsParams& params);
void LaunchFp8Experts(const Fp8ExpertsParams& params, cudaStream_t stream);

}  // namespace fathom
