#include "ops/check.h"

namespace fathom {

void Check(const HeadLinearArgs& a) {
  CheckWeight("head_linear: weight", a.weight);
  CHECK(!a.weight->quantize_activations,
        "head_linear: the weight must be packed with `exact_activations`");
  CheckActivation("head_linear: x", a.x, 3);
  const int64_t tokens = a.x.dim(0), heads = a.weight->count;
  CheckStrided("head_linear: x", a.x, a.x.dtype(), {tokens, heads, a.weight->in});
  CheckStrided("head_linear: out", a.out, a.x.dtype(), {tokens, heads, a.weight->out});
  CheckLive("head_linear: live", a.live);
  if (a.quantized.absent()) return;
  CheckQuantized("head_linear: quantized", a.quantized,
                 a.out.Reshaped({tokens, heads * a.weight->out}));
}

}  // namespace fathom
