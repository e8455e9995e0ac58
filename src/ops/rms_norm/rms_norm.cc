#include "ops/check.h"

namespace fathom {

void Check(const RmsNormArgs& a) {
  CheckActivation("rms_norm: x", a.x, 2);
  const int64_t tokens = a.x.dim(0), width = a.x.dim(1);
  CheckStrided("rms_norm: x", a.x, a.x.dtype(), {tokens, width});
  if (!a.residual.absent()) {
    CheckActivation("rms_norm: residual", a.residual, 2);
    CheckTensor("rms_norm: residual", a.residual, a.residual.dtype(), {tokens, width});
  }
  CheckTensor("rms_norm: weight", a.weight, DType::kF32, {width});
  CheckActivation("rms_norm: out", a.out, 2);
  CheckStrided("rms_norm: out", a.out, a.out.dtype(), {tokens, width});
  CheckQuantized("rms_norm: quantized", a.quantized, a.out);
  CHECK(width > 0 && a.eps > 0, "rms_norm: width {}, eps {}", width, a.eps);
  CheckLive("rms_norm: live", a.live);
}

}  // namespace fathom
