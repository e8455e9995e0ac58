#include "ops/check.h"

namespace fathom {

void Check(const GatherTokensArgs& a) {
  CheckActivation("gather_tokens: x", a.x, 2);
  CheckActivation("gather_tokens: out", a.out, 2);
  CheckTensor("gather_tokens: x", a.x, a.x.dtype(), {a.x.dim(0), a.x.dim(1)});
  CheckTensor("gather_tokens: out", a.out, a.x.dtype(), {a.out.dim(0), a.x.dim(1)});
  CheckTensor("gather_tokens: index", a.index, DType::kI32, {a.out.dim(0)});
  CheckLive("gather_tokens: live", a.live);
}

}  // namespace fathom
