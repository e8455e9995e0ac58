#include "ops/mlp/compose_mlp.h"

#include <algorithm>

#include "tensor/buffer.h"

namespace fathom {
namespace {

// The three ops, and where the rest of the work space begins.
struct Composition {
  LinearArgs gate_up;
  SiluMulArgs silu_mul;
  LinearArgs down;
  size_t used;
};

Composition Compose(const MlpArgs& a, Arena arena) {
  const int64_t tokens = a.x.dim(0), inter = a.down->in;
  const TensorView gate_up = arena.Allocate(a.x.dtype(), {tokens, 2 * inter});
  const TensorView product = arena.Allocate(a.x.dtype(), {tokens, inter});
  return {.gate_up = {.x = a.x, .weight = a.gate_up, .live = a.live, .out = gate_up},
          .silu_mul = {.gate_up = gate_up, .live = a.live, .out = product},
          .down = {.x = product, .weight = a.down, .live = a.live, .out = a.out},
          .used = (arena.used() + 255) / 256 * 256};
}

}  // namespace

size_t ComposedMlpWorkspace(const Stream& stream, const MlpArgs& a, const Op<LinearArgs>& linear) {
  const Composition c = Compose(a, Arena::Measuring());
  return c.used + std::max(linear.Workspace(stream, c.gate_up), linear.Workspace(stream, c.down));
}

void ComposeMlp(OpContext& context, const MlpArgs& a, const Op<LinearArgs>& linear,
                const Op<SiluMulArgs>& silu_mul) {
  const Composition c = Compose(a, Arena(context.workspace.data(), context.workspace.size()));
  OpContext rest{context.stream, context.workspace.subspan(c.used)};
  linear(rest, c.gate_up);
  silu_mul(rest, c.silu_mul);
  linear(rest, c.down);
}

}  // namespace fathom
