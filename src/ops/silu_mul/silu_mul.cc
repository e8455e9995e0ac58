#include "ops/check.h"

namespace fathom {

void Check(const SiluMulArgs& a) {
  CheckActivation("silu_mul: out", a.out, 2);
  const int64_t tokens = a.out.dim(0), inter = a.out.dim(1);
  CheckTensor("silu_mul: gate_up", a.gate_up, a.out.dtype(), {tokens, 2 * inter});
  CheckTensor("silu_mul: out", a.out, a.out.dtype(), {tokens, inter});
  CheckLive("silu_mul: live", a.live);
}

}  // namespace fathom
