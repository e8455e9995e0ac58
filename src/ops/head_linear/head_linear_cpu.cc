// A product per head (linear/panel_product_cpu.cc), split over heads, panels and blocks of tokens.
#include "ops/cpu_ops.h"
#include "ops/linear/panel_product_cpu.h"

namespace fathom {

void HeadLinearCpu(OpContext& context, const HeadLinearArgs& a) {
  const CpuWeight& w = AsCpu(a.weight);
  const int64_t tokens = Live(a.live, a.x.dim(0)), heads = w.count;
  const int64_t blocks = (tokens + kRowBlock - 1) / kRowBlock, panels = w.panel_count();
  const int64_t items = heads * blocks * panels;
  Pool(context).ParallelFor(
      items, PanelGrain(w, tokens, items, Pool(context).threads()),
      [&](int64_t begin, int64_t end, int) {
        while (begin < end) {
          // The panels of one head and block that lie within the range.
          const int64_t head = begin / panels / blocks, first = begin / panels % blocks * kRowBlock;
          const int64_t panel = begin % panels, stop = std::min(panels, panel + end - begin);
          const float* x = a.x.Row<float>(first) + head * a.x.stride(1);
          float* out = a.out.Row<float>(first) + head * a.out.stride(1);
          MultiplyPanels(w, head, panel, stop, PlainRows(w, x, a.x.stride(0)),
                         std::min(kRowBlock, tokens - first), out, a.out.stride(0));
          begin += stop - panel;
        }
      });
}

}  // namespace fathom
