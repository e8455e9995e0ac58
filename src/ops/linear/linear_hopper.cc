// Linear layers by Hopper's kernels, FP8 and BF16, where weights and layout fit, else by the
// portable ones: by model; by tokens only between kernels of equal bits.
#include "ops/hopper_ops.h"
#include "ops/linear/linear_cuda.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/bf16_product.h"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_weights.h"

namespace fathom {
namespace {

bool Fp8Fits(const LinearArgs& a) {
  return Fp8WeightsFit(AsCuda(a.weight)) && a.x.stride(0) % 8 == 0 && a.weight->out % 8 == 0;
}

size_t CodeBytes(const LinearArgs& a) {
  return (static_cast<size_t>(a.x.dim(0) * a.x.dim(1)) + 255) / 256 * 256;
}

Fp8Tokens Quantize(const LinearArgs& a, std::byte* workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0), in = a.x.dim(1);
  const QuantizedOut x = {.codes = reinterpret_cast<uint8_t*>(workspace),
                          .scales = reinterpret_cast<float*>(workspace + CodeBytes(a)),
                          .scale_pitch = Fp8ScalePitch(tokens),
                          .scale_ue8m0 = a.weight->scale_ue8m0};
  LaunchQuantizeTokens({.x = static_cast<const __nv_bfloat16*>(a.x.data()),
                        .stride = a.x.stride(0),
                        .capacity = tokens,
                        .channels = in,
                        .live = static_cast<const int32_t*>(a.live.data()),
                        .out = x},
                       stream);
  return {x.codes, x.scales, tokens, in, x.scale_pitch};
}

void LaunchFp8(const LinearArgs& a, std::byte* workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  const auto* live = static_cast<const int32_t*>(a.live.data());
  const bool f32 = a.out.dtype() == DType::kF32;
  const bool quantized = HasCodes(a.x_quantized);
  if (!quantized && tokens <= kFp8FewDenseTokens) {  // the same bits
    LaunchFp8FewTokens({.x = a.x.data(),
                        .x_stride = a.x.stride(0),
                        .scale_ue8m0 = a.weight->scale_ue8m0,
                        .tokens = tokens,
                        .live = live,
                        .w = Fp8WeightsOf(AsCuda(a.weight)),
                        .output = f32 ? Fp8FewTokensOutput::kF32 : Fp8FewTokensOutput::kBF16,
                        .y = a.out.data(),
                        .y_stride = a.out.stride(0)},
                       stream);
    return;
  }
  LaunchFp8Gemm({.x = quantized ? Fp8TokensOf(a.x_quantized) : Quantize(a, workspace, stream),
                 .w = Fp8WeightsOf(AsCuda(a.weight)),
                 .groups = {.counts = live, .capacity = tokens},
                 .out = a.out.data(),
                 .out_stride = a.out.stride(0),
                 .output = f32 ? Fp8GemmOutput::kF32 : Fp8GemmOutput::kBF16},
                stream);
}

}  // namespace

size_t LinearHopperWorkspace(const Stream& stream, const LinearArgs& a) {
  if (!Fp8Fits(a)) return LinearCudaWorkspace(stream, a);
  const int64_t runs = (a.x.dim(1) + kScaleTile - 1) / kScaleTile;
  return CodeBytes(a) + static_cast<size_t>(runs * Fp8ScalePitch(a.x.dim(0))) * sizeof(float);
}

void LinearHopper(OpContext& context, const LinearArgs& a) {
  if (a.x.dim(0) == 0) return;
  if (Fp8Fits(a)) {
    LaunchFp8(a, context.workspace.data(), Cuda(context).get());
  } else if (Bf16LinearFits(a)) {
    LaunchBf16ProductOnHopper(Bf16ProductOf(a), Cuda(context).get());
  } else {
    return LinearCuda(context, a);
  }
  Cuda(context).CheckLaunch("linear", a.x);
}

}  // namespace fathom
