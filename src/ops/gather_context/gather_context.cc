#include "ops/check.h"

namespace fathom {

void Check(const GatherContextArgs& a) {
  CheckPages("gather_context: pages", a.pages);
  CheckActivation("gather_context: latent", a.latent, 2);
  const int64_t context = a.latent.dim(0);
  CheckTensor("gather_context: latent", a.latent, a.latent.dtype(),
              {context, a.pages.latent.dim(2)});
  CheckTensor("gather_context: rope", a.rope, a.latent.dtype(), {context, a.pages.rope.dim(2)});
  CHECK(a.page_table.rank() == 2, "gather_context: page_table is {}", a.page_table.ToString());
  const int64_t slots = a.page_table.dim(0), pages = a.page_table.dim(1);
  CheckTensor("gather_context: page_table", a.page_table, DType::kI32, {slots, pages});
  CheckPieces("gather_context", a.pieces, context);
  for (const ContextPiece& piece : a.pieces) {
    CHECK(piece.slot >= 0 && piece.slot < slots, "gather_context: slot {} of {}", piece.slot,
          slots);
    CHECK(int64_t{piece.begin} + piece.count <= pages * kPageTokens,
          "gather_context: positions [{}, {}) lie beyond a table of {} pages", piece.begin,
          int64_t{piece.begin} + piece.count, pages);
  }
}

}  // namespace fathom
