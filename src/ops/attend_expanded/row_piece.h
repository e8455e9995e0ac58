// One row's share of expanded attention, for kernels that take one row at a time.
#pragma once

#include "ops/ops.h"

namespace fathom {

// Of AttendExpandedArgs, what belongs to one piece.
struct RowPiece {
  RowPiece(const AttendExpandedArgs& a, const ContextPiece& piece)
      : q(Tokens(a.q, piece)),
        positions(Tokens(a.positions, piece)),
        kv(Context(a.kv, piece)),
        rope(Context(a.rope, piece)),
        out(Tokens(a.out, piece)),
        lse(Tokens(a.lse, piece)),
        begin(piece.begin) {}

  bool first() const { return begin == 0; }

  TensorView q, positions, kv, rope, out, lse;
  int64_t begin;  // absolute position of the first key

 private:
  static TensorView Tokens(const TensorView& all, const ContextPiece& piece) {
    return all.Slice(0, piece.token_begin, piece.token_begin + piece.tokens);
  }
  static TensorView Context(const TensorView& all, const ContextPiece& piece) {
    return all.Slice(0, piece.at, piece.at + piece.count);
  }
};

}  // namespace fathom
