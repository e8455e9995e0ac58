// Activations in the form that a weight's products want (ActivationForm).
#pragma once

#include "cpu/thread_pool.h"
#include "products/cpu/cpu_weight.h"
#include "products/cpu/panel_product.h"
#include "tensor/buffer.h"

namespace fathom {

// Of n tokens, vector i is head i / n of token i % n, at
// x + i / n * head_stride + i % n * token_stride.
struct TokenSource {
  const float* x = nullptr;
  int64_t token_stride = 0;
  int64_t heads = 1, head_stride = 0;
};

// Packed into work space; none where the weight takes them as they lie. A run of a vector is a
// record of kScaleTile channels, zeros beyond the run's own:
//   kBF16          BF16
//   kSplit         BF16 [2][kScaleTile]: rounded, and what rounding left
//   kE4M3          fp32 values of the codes, or BF16 ones if the weight is `dots`
//   kInt8          fp32 codes, or 8-bit ones if `dots`
struct PackedTokens {
  PackedTokens(Arena& arena, const CpuWeight& w, int64_t capacity);
  // Packs `vectors` vectors of w.in channels, and says where they are.
  TokenActivations Pack(ThreadPool& pool, const CpuWeight& w, const TokenSource& from,
                        int64_t vectors) const;

  TensorView values;           // U8 [runs, capacity, bytes of a record]
  TensorView scales;           // F32 [runs, capacity]: kE4M3 and kInt8
  TensorView offsets;          // I32 [runs, capacity]: kInt8, -128 times the sum of the codes
  TensorView sub_run_offsets;  // I32 [runs, capacity, kSubRuns]: kInt8, -8 times a sub-run's sum
};

}  // namespace fathom
