// Products of BF16 activations and BF16 weights by tensor cores of any GPU from sm_80 on: dense,
// per head, or per expert. No device code here: a plain function that enqueues.
//
// A number's sum is taken in one order whatever the tile, so that a token's bits do not depend on
// how many tokens there are: chunks of 64 channels belong in turn to four warps, each of which
// takes its own in ascending order; then the warps' sums are added in order. Hopper has kernels of
// its own, with another order (hopper/bf16_product.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

inline constexpr int kBf16Chunk = 64;

struct Bf16ProductParams {
  // x: [tokens, in], or [tokens, count, in] with one matrix per head.
  const BF16* x = nullptr;
  int64_t x_stride = 0, x_head_stride = 0;  // elements
  const BF16* w = nullptr;                  // [count, out, in]
  int64_t count = 1, out = 0, in = 0;
  const int32_t* live = nullptr;  // [1]: tokens; with `counts` not read
  int64_t tokens = 0;             // capacity

  // Per expert: matrix e takes positions [begins[e], begins[e] + counts[e]) of `tokens` places, and
  // position p reads x[token_of[p]] (null: x[p]).
  const int32_t* counts = nullptr;
  const int32_t* begins = nullptr;
  const int32_t* token_of = nullptr;

  // Per expert without sorting, of at most 8 tokens: y[p] for p = t * topk + j is matrix ids[p]'s
  // product with x[p] if `x_of_pairs`, else x[t]. `tokens` are tokens.
  const int32_t* ids = nullptr;  // [tokens, topk], at most 128
  int64_t topk = 1;
  bool x_of_pairs = false;
  // The launch in front was of this function with the same ids: Hopper's kernel reads them before
  // it has ended.
  bool ids_early = false;
  // Each token's last ids are the last so many matrices, in order: Hopper's kernel asks for some of
  // their weights before the launch in front has ended.
  int64_t shared = 0;

  // y: BF16, or F32. With `silu` the matrix holds gate and up, and y is [tokens, out / 2].
  void* y = nullptr;
  int64_t y_stride = 0, y_head_stride = 0;
  bool f32 = false, silu = false;

  // For Hopper's kernels: `counts` and `begins` were there before the launch in front began: they
  // are read before that has ended.
  bool counts_early = false;
  // It lets the next launch begin once it has waited itself, as all but those of Hopper for few
  // tokens always do: one behind it may read early what was there before this one.
  bool wait_first = false;
};

// Whether strides and addresses suit it (16-byte copies); decided by the shape of the weights and
// the layout of x, never by the number of tokens.
bool Bf16ProductFits(const Bf16ProductParams& params);
// By a table's kernels. REQUIRES: Bf16ProductFits.
using Bf16ProductLaunch = void(const Bf16ProductParams& params, cudaStream_t stream);
Bf16ProductLaunch LaunchBf16Product;

}  // namespace fathom
