// A product per head on any GPU: BF16 by tensor cores where weights and layout allow it, all else
// by the plain product.
#include "ops/cuda_plain_ops.h"
#include "products/cuda/bf16_product.h"
#include "products/cuda/plain_product.h"

namespace fathom {
namespace {

Bf16ProductParams Bf16ProductOf(const HeadLinearArgs& a, bool hopper) {
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
          .y_head_stride = a.out.stride(1),
          .f32 = a.out.dtype() == DType::kF32,
          .x_early = a.beside_last,
          .hopper = hopper};
}

}  // namespace

void HeadLinearPlain(OpContext& context, const HeadLinearArgs& a, bool hopper) {
  if (a.x.dim(0) == 0) return;
  const Bf16ProductParams product = Bf16ProductOf(a, hopper);
  if (a.weight->format == WeightFormat::kBF16 && Bf16ProductFits(product)) {
    LaunchBf16Product(product, Cuda(context).get());
  } else {
    LaunchPlainProduct({.weight = a.weight,
                        .x = product.x,
                        .x_stride = product.x_stride,
                        .x_head_stride = product.x_head_stride,
                        .tokens = product.tokens,
                        .live = product.live,
                        .y = product.y,
                        .y_stride = product.y_stride,
                        .y_head_stride = product.y_head_stride,
                        .f32 = product.f32},
                       Cuda(context).get());
  }
  Cuda(context).CheckLaunch("head_linear", a.x);
}

void HeadLinearCuda(OpContext& context, const HeadLinearArgs& a) {
  HeadLinearPlain(context, a, false);
}

}  // namespace fathom
