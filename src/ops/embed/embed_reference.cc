#include <algorithm>

#include "ops/reference_ops.h"

namespace fathom {

void EmbedReference(OpContext&, const EmbedArgs& a) {
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const int32_t id = a.ids.As<int32_t>()[t];
    const int64_t vocab = std::max(a.vocab, a.table.dim(0)), at = id - a.first;
    CHECK(id >= 0 && id < vocab, "embed: token {} of a vocabulary of {}", id, vocab);
    const bool here = at >= 0 && at < a.table.dim(0);
    for (int64_t i = 0; i < a.out.dim(1); ++i) {
      a.out.As<float>(t)[i] = here ? LoadFloat(a.table, at, i) : 0;
    }
  }
}

}  // namespace fathom
