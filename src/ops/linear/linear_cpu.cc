// x W^T (panel_product_cpu.cc), split over panels and blocks of tokens.
#include "ops/cpu_ops.h"
#include "ops/linear/panel_product_cpu.h"
#include "ops/linear/quantize_rows_cpu.h"

namespace fathom {

size_t LinearCpuWorkspace(const Stream&, const LinearArgs& a) {
  if (!a.weight->quantize_activations) return 0;
  Arena arena = Arena::Measuring();
  QuantizedRows(arena, AsCpu(a.weight), std::min(kTokenChunk, a.x.dim(0)));
  return arena.used();
}

void LinearCpu(OpContext& context, const LinearArgs& a) {
  const CpuWeight& w = AsCpu(a.weight);
  const int64_t tokens = Live(a.live, a.x.dim(0));
  for (int64_t first = 0; first < tokens; first += kTokenChunk) {
    const int64_t n = std::min(kTokenChunk, tokens - first);
    const float* x = a.x.Row<float>(first);
    ActivationRows rows = PlainRows(w, x, a.x.stride(0));
    if (w.quantize_activations) {
      Arena arena(context.workspace.data(), context.workspace.size());
      const QuantizedRows quantized(arena, w, std::min(kTokenChunk, a.x.dim(0)));
      QuantizeRows(Pool(context), w, x, a.x.stride(0), n, quantized);
      rows = quantized.rows();
    }
    float* out = a.out.Row<float>(first);
    MultiplyInParallel(Pool(context), w, 0, rows, n, out, a.out.stride(0));
  }
}

}  // namespace fathom
