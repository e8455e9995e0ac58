// MLPs by Hopper's kernels, FP8 and BF16, where the weights fit, else by the portable ones.
#include <algorithm>

#include "ops/hopper_ops.h"
#include "ops/mlp/mlp_cuda.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/bf16_product.h"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_weights.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

bool Fp8Fits(const MlpArgs& a) {
  return Fp8WeightsFit(AsCuda(a.gate_up)) && Fp8WeightsFit(AsCuda(a.down)) &&
         AsCuda(a.gate_up).parts == 2 && a.x.stride(0) % 8 == 0;
}

// Tokens and their scales, before each of the two products.
struct Buffers {
  TensorView x, x_scales, product, product_scales;
  size_t used;
};
Buffers Layout(const MlpArgs& a, Arena arena) {
  const int64_t tokens = a.x.dim(0), pitch = Fp8ScalePitch(tokens);
  const auto runs = [](int64_t channels) { return (channels + kScaleTile - 1) / kScaleTile; };
  Buffers b{};
  b.x = arena.Allocate(DType::kU8, {tokens, a.gate_up->in});
  b.x_scales = arena.Allocate(DType::kF32, {runs(a.gate_up->in), pitch});
  b.product = arena.Allocate(DType::kU8, {tokens, a.down->in});
  b.product_scales = arena.Allocate(DType::kF32, {runs(a.down->in), pitch});
  b.used = arena.used();
  return b;
}

// The product of few tokens, F32.
size_t FewTokensBytes(const MlpArgs& a) {
  return static_cast<size_t>(std::min(a.x.dim(0), kFp8FewDenseTokens) * a.down->in) * sizeof(float);
}

void FewTokens(const MlpArgs& a, std::byte* product, cudaStream_t stream) {
  const auto* live = static_cast<const int32_t*>(a.live.data());
  LaunchFp8FewTokens({.x = a.x.data(),
                      .x_stride = a.x.stride(0),
                      .scale_ue8m0 = a.gate_up->scale_ue8m0,
                      .tokens = a.x.dim(0),
                      .live = live,
                      .w = Fp8WeightsOf(AsCuda(a.gate_up)),
                      .output = Fp8FewTokensOutput::kSilu,
                      .y = product,
                      .y_stride = a.down->in},
                     stream);
  LaunchFp8FewTokens({.x = product,
                      .x_f32 = true,
                      .x_stride = a.down->in,
                      .scale_ue8m0 = a.down->scale_ue8m0,
                      .tokens = a.x.dim(0),
                      .live = live,
                      .w = Fp8WeightsOf(AsCuda(a.down)),
                      .y = a.out.data(),
                      .y_stride = a.out.stride(0)},
                     stream);
}

void LaunchFp8(const MlpArgs& a, std::span<std::byte> workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0), pitch = Fp8ScalePitch(tokens);
  if (tokens <= kFp8FewDenseTokens) {  // the same bits
    return FewTokens(a, workspace.data(), stream);
  }
  const auto* live = static_cast<const int32_t*>(a.live.data());
  const Buffers b = Layout(a, Arena(workspace.data(), workspace.size()));
  const Fp8TokenGroups groups = {.counts = live, .capacity = tokens};
  auto* x = static_cast<uint8_t*>(b.x.data());
  auto* product = static_cast<uint8_t*>(b.product.data());
  auto* x_scales = static_cast<float*>(b.x_scales.data());
  auto* product_scales = static_cast<float*>(b.product_scales.data());
  const bool quantized = HasCodes(a.x_quantized);
  if (!quantized) {
    LaunchQuantizeTokens({.x = static_cast<const __nv_bfloat16*>(a.x.data()),
                          .stride = a.x.stride(0),
                          .capacity = tokens,
                          .channels = a.gate_up->in,
                          .live = live,
                          .out = {x, x_scales, pitch, a.gate_up->scale_ue8m0}},
                         stream);
  }
  LaunchFp8GemmSilu({.x = quantized ? Fp8TokensOf(a.x_quantized)
                                    : Fp8Tokens{x, x_scales, tokens, a.gate_up->in, pitch},
                     .w = Fp8WeightsOf(AsCuda(a.gate_up)),
                     .groups = groups,
                     .out = product,
                     .out_scales = product_scales,
                     .out_scale_pitch = pitch,
                     .scale_ue8m0 = a.down->scale_ue8m0},
                    stream);
  LaunchFp8Gemm({.x = {product, product_scales, tokens, a.down->in, pitch},
                 .w = Fp8WeightsOf(AsCuda(a.down)),
                 .groups = groups,
                 .out = a.out.data(),
                 .out_stride = a.out.stride(0)},
                stream);
}

}  // namespace

size_t MlpHopperWorkspace(const Stream& stream, const MlpArgs& a) {
  if (!Fp8Fits(a)) return MlpCudaWorkspace(stream, a);
  // A smaller step needs no more than a larger one.
  return std::max(FewTokensBytes(a), Layout(a, Arena::Measuring()).used);
}

void MlpHopper(OpContext& context, const MlpArgs& a) {
  if (a.x.dim(0) == 0) return;
  if (Fp8Fits(a)) {
    LaunchFp8(a, context.workspace, Cuda(context).get());
  } else if (Bf16MlpFits(a)) {
    LaunchBf16Mlp(a, context.workspace.data(), LaunchBf16ProductOnHopper, Cuda(context).get());
  } else {
    return MlpCuda(context, a);
  }
  Cuda(context).CheckLaunch("mlp", a.x);
}

}  // namespace fathom
