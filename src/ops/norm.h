// Norms' contracts, which other ops' may hold.
#pragma once

#include "ops/quantized_copy.h"
#include "tensor/tensor_view.h"

namespace fathom {

class Communicator;  // parallel/communicator.h

// out = x / sqrt(mean(x^2) + eps) * weight, in fp32 (Zhang & Sennrich 2019, RMSNorm).
// With `residual`: residual += x first, and the norm is of the sum.
struct RmsNormArgs {
  TensorView x;         // act, or F32 without `residual`, [tokens, width]; tokens may be strided
  TensorView residual;  // act or F32 [tokens, width] in and out, or absent
  TensorView weight;    // F32 [width]
  float eps = 1e-6f;
  TensorView live;          // I32 [1]: tokens
  TensorView out;           // act [tokens, width]; tokens may be strided; may be x
  QuantizedCopy quantized;  // out: of `out`, or absent

  bool absent() const { return out.absent(); }  // of ops that norm as well
};

// residual += the sum over ranks of x, in fp32, in the order of ranks, rounded once to act; then
// rms_norm of it: all ranks come to the same bits of `out`, and a token to the same in any message.
// Ranks that are GPUs add only to what they own of a large message (all_reduce_norm/sum_rounds.h),
// unless the residual is to be whole: it is then for other ops than all_reduce_norms of as many
// tokens.
struct AllReduceNormArgs {
  RmsNormArgs norm;     // x: this rank's part, contiguous; with a residual in F32
  bool begins = false;  // the sum takes the residual's place
  bool whole = false;   // every rank adds all tokens; the same for all sums of a pass
  Communicator* ranks = nullptr;
};

}  // namespace fathom
