#include "ops/page_rows.h"
#include "ops/reference_ops.h"

namespace fathom {

void GatherContextReference(OpContext&, const GatherContextArgs& a) {
  const int32_t* table = a.page_table.As<int32_t>();
  for (int64_t i = 0; i < a.latent.dim(0); ++i) {
    const int32_t page = PageOf(table, a.page_table.dim(0), a.begin + i, a.pages);
    LoadLatent(a.pages, page, a.begin + i, a.latent.Row<float>(i));
    LoadRope(a.pages, page, a.begin + i, a.rope.Row<float>(i));
  }
}

}  // namespace fathom
