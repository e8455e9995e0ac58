// Linear layers on any GPU: BF16 by tensor cores where weights and layout allow it, all else by the
// plain product.
#include "ops/linear/linear_cuda.h"

#include "ops/cuda_ops.h"
#include "products/cuda/plain_product.h"
#include "products/cuda/quantize_runs.h"

namespace fathom {

bool Bf16LinearFits(const LinearArgs& a) {
  return a.weight->format == WeightFormat::kBF16 && Bf16ProductFits(Bf16ProductOf(a));
}

Bf16ProductParams Bf16ProductOf(const LinearArgs& a) {
  return {.x = static_cast<const BF16*>(a.x.data()),
          .x_stride = a.x.stride(0),
          .w = reinterpret_cast<const BF16*>(AsCuda(a.weight).values->data()),
          .out = a.weight->out,
          .in = a.weight->in,
          .live = static_cast<const int32_t*>(a.live.data()),
          .tokens = a.x.dim(0),
          .y = a.out.data(),
          .y_stride = a.out.stride(0),
          .f32 = a.out.dtype() == DType::kF32,
          .wait_first = true};
}

namespace {

void LaunchPlain(const LinearArgs& a, std::span<std::byte> workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  PlainProductParams params = {.weight = a.weight,
                               .x = static_cast<const BF16*>(a.x.data()),
                               .x_stride = a.x.stride(0),
                               .tokens = tokens,
                               .live = static_cast<const int32_t*>(a.live.data()),
                               .y = a.out.data(),
                               .y_stride = a.out.stride(0),
                               .f32 = a.out.dtype() == DType::kF32};
  if (a.weight->quantize_activations) {
    Arena arena(workspace.data(), workspace.size());
    params.quantized = QuantizedTokensIn(arena, AsCuda(a.weight), tokens);
    LaunchQuantizeRuns<BF16>(stream, AsCuda(a.weight),
                             {.x = params.x,
                              .stride = params.x_stride,
                              .tokens = tokens,
                              .live = params.live,
                              .out = params.quantized});
  }
  LaunchPlainProduct(params, stream);
}

}  // namespace

size_t LinearCudaWorkspace(const Stream&, const LinearArgs& a) {
  Arena arena = Arena::Measuring();
  if (a.weight->quantize_activations) QuantizedTokensIn(arena, AsCuda(a.weight), a.x.dim(0));
  return arena.used();
}

void LinearCuda(OpContext& context, const LinearArgs& a) {
  if (a.x.dim(0) == 0) return;
  if (Bf16LinearFits(a)) {
    LaunchBf16Product(Bf16ProductOf(a), Cuda(context).get());
  } else {
    LaunchPlain(a, context.workspace, Cuda(context).get());
  }
  Cuda(context).CheckLaunch("linear", a.x);
}

}  // namespace fathom
