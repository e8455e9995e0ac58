#include "ops/check.h"

namespace fathom {

void Check(const GatherContextArgs& a) {
  CheckPages("gather_context: pages", a.pages);
  CheckActivation("gather_context: latent", a.latent, 2);
  const int64_t context = a.latent.dim(0);
  CheckTensor("gather_context: latent", a.latent, a.latent.dtype(),
              {context, a.pages.latent.dim(2)});
  CheckTensor("gather_context: rope", a.rope, a.latent.dtype(), {context, a.pages.rope.dim(2)});
  CHECK(a.page_table.rank() == 1, "gather_context: page_table is {}", a.page_table.ToString());
  CheckTensor("gather_context: page_table", a.page_table, DType::kI32, {a.page_table.dim(0)});
  CHECK(a.begin >= 0 && a.begin + context <= a.page_table.dim(0) * kPageTokens,
        "gather_context: positions [{}, {}) lie beyond a table of {} pages", a.begin,
        a.begin + context, a.page_table.dim(0));
}

}  // namespace fathom
