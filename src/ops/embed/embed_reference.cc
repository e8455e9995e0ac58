#include "ops/reference_ops.h"

namespace fathom {

void EmbedReference(OpContext&, const EmbedArgs& a) {
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const int32_t id = a.ids.As<int32_t>()[t];
    CHECK(id >= 0 && id < a.table.dim(0), "embed: token {} of a vocabulary of {}", id,
          a.table.dim(0));
    for (int64_t i = 0; i < a.out.dim(1); ++i) a.out.As<float>(t)[i] = LoadFloat(a.table, id, i);
  }
}

}  // namespace fathom
