// A product per head on any GPU: BF16 by tensor cores where weights and layout allow it, all else
// by the plain product.
#include "ops/head_linear_cuda.h"

#include "ops/cuda_ops.h"
#include "products/cuda/cuda_weight.h"
#include "products/cuda/plain_product.h"

namespace fathom {

bool Bf16HeadLinearFits(const HeadLinearArgs& a) {
  return a.weight->format == WeightFormat::kBF16 && Bf16ProductFits(Bf16ProductOf(a));
}

Bf16ProductParams Bf16ProductOf(const HeadLinearArgs& a) {
  return {.x = static_cast<const BF16*>(a.x.data()),
          .x_stride = a.x.stride(0),
          .x_head_stride = a.x.stride(1),
          .w = reinterpret_cast<const BF16*>(AsCuda(a.weight).values->data()),
          .count = a.weight->count,
          .out = a.weight->out,
          .in = a.weight->in,
          .live = static_cast<const int32_t*>(a.live.data()),
          .tokens = a.x.dim(0),
          .y = a.out.data(),
          .y_stride = a.out.stride(0),
          .y_head_stride = a.out.stride(1)};
}

void HeadLinearCuda(OpContext& context, const HeadLinearArgs& a) {
  if (a.x.dim(0) == 0) return;
  if (Bf16HeadLinearFits(a)) {
    LaunchBf16Product(Bf16ProductOf(a), Cuda(context).get());
  } else {
    LaunchPlainProduct({.weight = a.weight,
                        .x = static_cast<const BF16*>(a.x.data()),
                        .x_stride = a.x.stride(0),
                        .x_head_stride = a.x.stride(1),
                        .tokens = a.x.dim(0),
                        .live = static_cast<const int32_t*>(a.live.data()),
                        .y = a.out.data(),
                        .y_stride = a.out.stride(0),
                        .y_head_stride = a.out.stride(1)},
                       Cuda(context).get());
  }
  Cuda(context).CheckLaunch("head_linear", a.x);
}

}  // namespace fathom
