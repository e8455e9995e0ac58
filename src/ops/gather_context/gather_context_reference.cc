#include "ops/page_tokens.h"
#include "ops/reference_ops.h"

namespace fathom {

void GatherContextReference(OpContext&, const GatherContextArgs& a) {
  for (const ContextPiece& piece : a.pieces) {
    const int32_t* table = a.page_table.As<int32_t>(piece.slot);
    for (int64_t i = 0; i < piece.count; ++i) {
      const int64_t position = piece.begin + i, at = piece.at + i;
      const int32_t page = PageOf(table, a.page_table.dim(1), position, a.pages);
      LoadLatent(a.pages, page, position, a.latent.As<float>(at));
      LoadRope(a.pages, page, position, a.rope.As<float>(at));
    }
  }
}

}  // namespace fathom
