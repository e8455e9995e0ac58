#include "ops/check.h"

namespace fathom {

void Check(const MlpArgs& a) {
  CheckWeight("mlp: gate_up", a.gate_up);
  CheckWeight("mlp: down", a.down);
  CHECK(a.gate_up->count == 1 && a.down->count == 1 && a.gate_up->out == 2 * a.down->in,
        "mlp: gate_up is {} x [{}, {}], down is {} x [{}, {}]", a.gate_up->count, a.gate_up->out,
        a.gate_up->in, a.down->count, a.down->out, a.down->in);
  CheckActivation("mlp: x", a.x, 2);
  const int64_t tokens = a.x.dim(0);
  CheckStrided("mlp: x", a.x, a.x.dtype(), {tokens, a.gate_up->in});
  CheckQuantized("mlp: x_quantized", a.x_quantized, a.x);
  CheckReads("mlp: x_quantized", a.x_quantized, *a.gate_up);
  CheckTensor("mlp: out", a.out, a.x.dtype(), {tokens, a.down->out});
  CheckLive("mlp: live", a.live);
}

}  // namespace fathom
