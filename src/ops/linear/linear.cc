#include "ops/check.h"

namespace fathom {

void Check(const LinearArgs& a) {
  CheckWeight("linear: weight", a.weight);
  CHECK(a.weight->count == 1, "linear: {} matrices where one is due", a.weight->count);
  CheckActivation("linear: x", a.x, 2);
  CheckStrided("linear: x", a.x, a.x.dtype(), {a.x.dim(0), a.weight->in});
  CheckQuantized("linear: x_quantized", a.x_quantized, a.x);
  CheckReads("linear: x_quantized", a.x_quantized, *a.weight);
  CheckActivation("linear: out", a.out, 2);
  CHECK(a.out.dtype() == DType::kF32 || a.out.dtype() == a.x.dtype(), "linear: out is {}, x is {}",
        a.out.ToString(), a.x.ToString());
  CheckTensor("linear: out", a.out, a.out.dtype(), {a.x.dim(0), a.weight->out});
  CheckLive("linear: live", a.live);
}

}  // namespace fathom
