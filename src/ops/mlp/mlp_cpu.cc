// The gated MLP: two products (products/cpu/panel_product.cc), between them silu(gate) * up.
#include <algorithm>

#include "ops/cpu_ops.h"
#include "products/cpu/pack_tokens.h"
#include "products/cpu/panel_product.h"

namespace fathom {
namespace {

// The work space of a chunk of tokens.
struct Buffers {
  Buffers(Arena& arena, const MlpArgs& a)
      : tokens(std::min(kTokenChunk, a.x.dim(0))),
        product(arena.Allocate(DType::kF32, {tokens, a.down->in})),
        x_runs(arena, AsCpu(a.gate_up), tokens),
        product_runs(arena, AsCpu(a.down), tokens) {}

  int64_t tokens;
  TensorView product;
  PackedTokens x_runs, product_runs;
};

}  // namespace

size_t MlpCpuWorkspace(const Stream&, const MlpArgs& a) {
  Arena arena = Arena::Measuring();
  Buffers(arena, a);
  return arena.used();
}

void MlpCpu(OpContext& context, const MlpArgs& a) {
  Arena arena(context.workspace.data(), context.workspace.size());
  const Buffers b(arena, a);
  ThreadPool& pool = Pool(context);
  const CpuWeight &gate_up = AsCpu(a.gate_up), &down = AsCpu(a.down);
  const int64_t tokens = Live(a.live, a.x.dim(0));
  for (int64_t first = 0; first < tokens; first += kTokenChunk) {
    const int64_t n = std::min(kTokenChunk, tokens - first);
    const TokenActivations x =
        b.x_runs.Pack(pool, gate_up, {a.x.As<float>(first), a.x.stride(0)}, n);
    MultiplyGatedInParallel(pool, gate_up, x, n, b.product);
    const TokenActivations product =
        b.product_runs.Pack(pool, down, {b.product.As<float>(), down.in}, n);
    MultiplyInParallel(pool, down, product, n, a.out.Slice(0, first, first + n));
  }
}

}  // namespace fathom
