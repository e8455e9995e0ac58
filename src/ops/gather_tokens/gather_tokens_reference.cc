#include <algorithm>

#include "ops/reference_ops.h"

namespace fathom {

void GatherTokensReference(OpContext&, const GatherTokensArgs& a) {
  for (int64_t i = 0; i < *a.live.As<int32_t>(); ++i) {
    const int32_t from = a.index.As<int32_t>()[i];
    CHECK(from >= 0 && from < a.x.dim(0), "gather_tokens: token {} of {}", from, a.x.dim(0));
    std::copy_n(a.x.As<float>(from), a.x.dim(1), a.out.As<float>(i));
  }
}

}  // namespace fathom
