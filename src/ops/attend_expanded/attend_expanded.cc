#include "ops/check.h"

namespace fathom {

void Check(const AttendExpandedArgs& a) {
  CheckActivation("attend_expanded: q", a.q, 3);
  CHECK(a.rope.rank() == 2 && a.out.rank() == 3, "attend_expanded: rope is {}, out is {}",
        a.rope.ToString(), a.out.ToString());
  const DType act = a.q.dtype();
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1);
  const int64_t context = a.rope.dim(0), rope = a.rope.dim(1), vdim = a.out.dim(2);
  const int64_t nope = a.q.dim(2) - rope;
  CHECK(nope >= 0, "attend_expanded: q of {} channels holds no key of {}", a.q.dim(2), rope);
  CheckStrided("attend_expanded: q", a.q, act, {tokens, heads, nope + rope});
  CHECK(a.q.stride(1) == nope + rope, "attend_expanded: heads of q lie {} apart", a.q.stride(1));
  CheckTensor("attend_expanded: positions", a.positions, DType::kI32, {tokens});
  CheckTensor("attend_expanded: kv", a.kv, act, {context, heads, nope + vdim});
  CheckTensor("attend_expanded: rope", a.rope, act, {context, rope});
  CheckTensor("attend_expanded: out", a.out, act, {tokens, heads, vdim});
  CheckTensor("attend_expanded: lse", a.lse, DType::kF32, {tokens, heads});
  CheckPieces("attend_expanded", a.pieces, context);
  int64_t end = 0;
  for (const ContextPiece& piece : a.pieces) {
    CHECK(piece.token_begin >= end && piece.tokens >= 0,
          "attend_expanded: a piece of {} tokens from {} on, after {}", piece.tokens,
          piece.token_begin, end);
    end = int64_t{piece.token_begin} + piece.tokens;
  }
  CHECK(end <= tokens, "attend_expanded: pieces of {} tokens, {} there", end, tokens);
}

}  // namespace fathom
