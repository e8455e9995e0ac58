// x W^T (products/cpu/panel_product.cc), split over panels and groups of tokens.
#include "ops/cpu_ops.h"
#include "products/cpu/pack_tokens.h"
#include "products/cpu/panel_product.h"

namespace fathom {

size_t LinearCpuWorkspace(const Stream&, const LinearArgs& a) {
  Arena arena = Arena::Measuring();
  PackedTokens(arena, AsCpu(a.weight), std::min(kTokenChunk, a.x.dim(0)));
  return arena.used();
}

void LinearCpu(OpContext& context, const LinearArgs& a) {
  const CpuWeight& w = AsCpu(a.weight);
  const int64_t tokens = Live(a.live, a.x.dim(0));
  Arena arena(context.workspace.data(), context.workspace.size());
  const PackedTokens packed(arena, w, std::min(kTokenChunk, a.x.dim(0)));
  for (int64_t first = 0; first < tokens; first += kTokenChunk) {
    const int64_t n = std::min(kTokenChunk, tokens - first);
    const TokenActivations packed_x =
        packed.Pack(Pool(context), w, {a.x.As<float>(first), a.x.stride(0)}, n);
    MultiplyInParallel(Pool(context), w, packed_x, n, a.out.Slice(0, first, first + n));
  }
}

}  // namespace fathom
