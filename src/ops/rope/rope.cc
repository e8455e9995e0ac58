#include "ops/check.h"

namespace fathom {

void Check(const RopeArgs& a) {
  CheckActivation("rope: x", a.x, 3);
  const int64_t tokens = a.x.dim(0), width = a.x.dim(2);
  CHECK(width % 2 == 0, "rope: {} channels do not make pairs", width);
  CheckStrided("rope: x", a.x, a.x.dtype(), {tokens, a.x.dim(1), width});
  CheckTensor("rope: positions", a.positions, DType::kI32, {tokens});
  CHECK(a.cos_sin.rank() == 3, "rope: cos_sin is {}", a.cos_sin.ToString());
  CheckTensor("rope: cos_sin", a.cos_sin, DType::kF32, {a.cos_sin.dim(0), 2, width / 2});
  CheckLive("rope: live", a.live);
}

}  // namespace fathom
