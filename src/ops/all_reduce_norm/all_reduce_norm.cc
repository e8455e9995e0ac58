#include "ops/check.h"

namespace fathom {

void Check(const AllReduceNormArgs& a) {
  CHECK(a.ranks != nullptr, "all_reduce_norm: no communicator");
  Check(a.norm);
  const TensorView &x = a.norm.x, &residual = a.norm.residual;
  CheckTensor("all_reduce_norm: x", x, x.dtype(), {x.dim(0), x.dim(1)});
  CHECK(!residual.absent() && residual.dtype() == DType::kF32, "all_reduce_norm: residual is {}",
        residual.ToString());
}

}  // namespace fathom
