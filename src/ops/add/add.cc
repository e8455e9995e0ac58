#include "ops/check.h"

namespace fathom {

void Check(const AddArgs& a) {
  CheckActivation("add: x", a.x, 2);
  CheckTensor("add: x", a.x, a.x.dtype(), {a.x.dim(0), a.x.dim(1)});
  CheckTensor("add: sum", a.sum, a.x.dtype(), {a.x.dim(0), a.x.dim(1)});
  CheckLive("add: live", a.live);
}

}  // namespace fathom
