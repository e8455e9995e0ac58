#include "ops/check.h"

namespace fathom {

void Check(const GatherRowsArgs& a) {
  CheckActivation("gather_rows: x", a.x, 2);
  CheckActivation("gather_rows: out", a.out, 2);
  CheckTensor("gather_rows: x", a.x, a.x.dtype(), {a.x.dim(0), a.x.dim(1)});
  CheckTensor("gather_rows: out", a.out, a.x.dtype(), {a.out.dim(0), a.x.dim(1)});
  CheckTensor("gather_rows: index", a.index, DType::kI32, {a.out.dim(0)});
  CheckLive("gather_rows: live", a.live);
}

}  // namespace fathom
