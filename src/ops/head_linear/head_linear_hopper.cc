// A product per head with Hopper's kernels where they fit, and the quantised copy of what it makes.
#include "ops/cuda_plain_ops.h"
#include "products/cuda/quantize_rows.h"

namespace fathom {

void HeadLinearHopper(OpContext& context, const HeadLinearArgs& a) {
  const QuantizedOut quantized = QuantizedOutOf(context.stream, a.quantized);
  HeadLinearPlain(context, a, IsHopper(context.stream));
  const int64_t tokens = a.out.dim(0);
  if (quantized.codes == nullptr || tokens == 0) return;
  LaunchQuantizeRows({.x = static_cast<const __nv_bfloat16*>(a.out.data()),
                      .stride = a.out.stride(0),
                      .capacity = tokens,
                      .channels = a.quantized.codes.dim(1),
                      .live = static_cast<const int32_t*>(a.live.data()),
                      .out = quantized},
                     Cuda(context).get());
  Cuda(context).CheckLaunch("head_linear", a.x);
}

}  // namespace fathom
