// A row's piece as the portable kernels get it.
#pragma once

#include "cuda/kernels.cuh"
#include "ops/attend_expanded/row_piece.h"
#include "ops/cuda_ops.h"

namespace fathom::kernels {

// As AttendExpandedArgs (ops.h), of one row.
struct DevicePiece {
  DevicePiece(const RowPiece& a, float scale)
      : q(Data<BF16>(a.q)),
        kv(Data<BF16>(a.kv)),
        rope(Data<BF16>(a.rope)),
        q_stride(a.q.stride(0)),
        positions(Data<int32_t>(a.positions)),
        tokens(a.q.dim(0)),
        heads(a.q.dim(1)),
        context(a.kv.dim(0)),
        nope(a.q.dim(2) - a.rope.dim(1)),
        rope_dim(a.rope.dim(1)),
        vdim(a.out.dim(2)),
        context_begin(a.begin),
        scale(scale),
        first(a.first()),
        out(Data<BF16>(a.out)),
        lse(Data<float>(a.lse)) {}

  // [tokens, heads, nope + rope], [context, heads, nope + vdim], [context, rope]
  const BF16 *q, *kv, *rope;
  int64_t q_stride;          // elements from token to token
  const int32_t* positions;  // [tokens]
  int64_t tokens, heads, context, nope, rope_dim, vdim, context_begin;
  float scale;
  bool first;
  BF16* out;   // [tokens, heads, vdim]
  float* lse;  // [tokens, heads]
};

}  // namespace fathom::kernels
