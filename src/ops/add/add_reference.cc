#include "ops/reference_ops.h"

namespace fathom {

void AddReference(OpContext&, const AddArgs& a) {
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    for (int64_t i = 0; i < a.x.dim(1); ++i) a.sum.Row<float>(t)[i] += a.x.Row<float>(t)[i];
  }
}

}  // namespace fathom
