#include "ops/page_rows.h"
#include "ops/reference_ops.h"

namespace fathom {

void CacheWriteReference(OpContext&, const CacheWriteArgs& a) {
  const TokenMap& map = a.tokens;
  for (int64_t t = 0; t < *map.live.As<int32_t>(); ++t) {
    const int64_t position = map.positions.As<int32_t>()[t];
    const int32_t* table = SlotPages(map.page_table, map.slots.As<int32_t>()[t]);
    const int32_t page = PageOf(table, map.page_table.dim(1), position, a.pages);
    StoreLatent(a.pages, page, position, a.latent.Row<float>(t));
    StoreRope(a.pages, page, position, a.rope.Row<float>(t));
  }
}

}  // namespace fathom
