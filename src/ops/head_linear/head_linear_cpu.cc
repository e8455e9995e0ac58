// A product per head (products/cpu/panel_product.cc), split over heads and panels.
#include "ops/cpu_ops.h"
#include "products/cpu/pack_tokens.h"
#include "products/cpu/panel_product.h"

namespace fathom {
namespace {

// Tokens at a time: all their heads are packed together.
constexpr int64_t kTokens = 64;

PackedTokens Packed(Arena& arena, const HeadLinearArgs& a) {
  return PackedTokens(arena, AsCpu(a.weight), std::min(kTokens, a.x.dim(0)) * a.weight->count);
}

}  // namespace

size_t HeadLinearCpuWorkspace(const Stream&, const HeadLinearArgs& a) {
  Arena arena = Arena::Measuring();
  Packed(arena, a);
  return arena.used();
}

void HeadLinearCpu(OpContext& context, const HeadLinearArgs& a) {
  const CpuWeight& w = AsCpu(a.weight);
  const int64_t tokens = Live(a.live, a.x.dim(0)), heads = w.count, panels = w.panel_count();
  const bool plain = w.activations == ActivationForm::kPlain;
  ThreadPool& pool = Pool(context);
  Arena arena(context.workspace.data(), context.workspace.size());
  const PackedTokens packed = Packed(arena, a);
  for (int64_t first = 0; first < tokens; first += kTokens) {
    const int64_t n = std::min(kTokens, tokens - first), items = heads * panels;
    const float* x = a.x.As<float>(first);
    TokenActivations packed_x;
    if (!plain)
      packed_x = packed.Pack(pool, w, {x, a.x.stride(0), heads, a.x.stride(1)}, n * heads);
    pool.ParallelFor(
        items, PanelGrain(w, n, items, pool.threads()), [&](int64_t begin, int64_t end, int) {
          while (begin < end) {
            // The panels of one head that lie within the range.
            const int64_t head = begin / panels, panel = begin % panels;
            const int64_t stop = std::min(panels, panel + end - begin);
            MultiplyPanels(
                {w, head, panel, stop},
                plain ? PlainTokens(w, x + head * a.x.stride(1), a.x.stride(0))
                      : packed_x.From(head * n),
                n,
                {a.out.As<float>(first) + head * a.out.stride(1) + w.OutsBetween(0, panel),
                 a.out.stride(0)});
            begin += stop - panel;
          }
        });
  }
}

}  // namespace fathom
