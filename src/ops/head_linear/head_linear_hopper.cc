// A product per head by Hopper's kernels where they fit, and the quantised copy of what it makes.
#include "ops/head_linear_cuda.h"
#include "ops/hopper_ops.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/bf16_product.h"

namespace fathom {

void HeadLinearHopper(OpContext& context, const HeadLinearArgs& a) {
  const int64_t tokens = a.out.dim(0);
  if (tokens == 0) return;
  if (Bf16HeadLinearFits(a)) {
    LaunchBf16ProductOnHopper(Bf16ProductOf(a), Cuda(context).get());
    Cuda(context).CheckLaunch("head_linear", a.x);
  } else {
    HeadLinearCuda(context, a);
  }
  const QuantizedOut quantized = QuantizedOutOf(a.quantized);
  if (quantized.codes == nullptr) return;
  LaunchQuantizeTokens({.x = a.out.data(),
                        .stride = a.out.stride(0),
                        .capacity = tokens,
                        .channels = a.quantized.codes.dim(1),
                        .live = static_cast<const int32_t*>(a.live.data()),
                        .out = quantized},
                       Cuda(context).get());
  Cuda(context).CheckLaunch("head_linear", a.x);
}

}  // namespace fathom
