#include "ops/check.h"

namespace fathom {

void Check(const ConvertArgs& a) {
  CheckActivation("convert: x", a.x, 2);
  const int64_t tokens = a.x.dim(0), width = a.x.dim(1);
  CheckTensor("convert: x", a.x, a.x.dtype(), {tokens, width});
  CheckTensor("convert: out", a.out, a.x.dtype() == DType::kF32 ? DType::kBF16 : DType::kF32,
              {tokens, width});
  CheckLive("convert: live", a.live);
}

}  // namespace fathom
