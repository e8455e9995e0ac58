// Linear layers by Hopper's kernels, FP8 and BF16, where weights and layout fit, else by the
// portable ones: by model; by tokens only between kernels of equal bits, unless these are given up.
#include "ops/hopper_ops.h"
#include "ops/linear/linear_cuda.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/bf16_product.h"
#include "products/hopper/fp8_few_codes.h"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_weights.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

bool Fp8Fits(const LinearArgs& a) {
  return Fp8WeightsFit(AsCuda(a.weight)) && a.x.stride(0) % 8 == 0 && a.weight->out % 8 == 0;
}

Fp8Tokens Quantize(const LinearArgs& a, std::span<std::byte> workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  Arena arena(workspace.data(), workspace.size());
  const QuantizedOut x = TakeQuantized(arena, tokens, *a.weight);
  LaunchQuantizeTokens({.x = a.x.data(),
                        .stride = a.x.stride(0),
                        .capacity = tokens,
                        .channels = a.x.dim(1),
                        .live = static_cast<const int32_t*>(a.live.data()),
                        .out = x},
                       stream);
  return Fp8TokensOf(x, tokens, *a.weight);
}

// By the number of tokens, to the same bits.
void LaunchFp8(const LinearArgs& a, std::span<std::byte> workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  const auto* live = static_cast<const int32_t*>(a.live.data());
  const Fp8Weights w = Fp8WeightsOf(AsCuda(a.weight));
  const bool f32 = a.out.dtype() == DType::kF32, quantized = HasCodes(a.x_quantized),
             few_codes = !f32 && w.parts == 1 && Fp8FewCodesPays(w, tokens, quantized);
  if (!quantized && !few_codes && tokens <= kFp8FewDenseTokens) {
    LaunchFp8FewTokens({.x = a.x.data(),
                        .x_stride = a.x.stride(0),
                        .scale_ue8m0 = a.weight->scale_ue8m0,
                        .tokens = tokens,
                        .live = live,
                        .w = w,
                        .output = f32 ? Fp8FewTokensOutput::kF32 : Fp8FewTokensOutput::kBF16,
                        .y = a.out.data(),
                        .y_stride = a.out.stride(0)},
                       stream);
    return;
  }
  const Fp8Tokens x = quantized ? Fp8TokensOf(a.x_quantized) : Quantize(a, workspace, stream);
  if (few_codes) {
    return LaunchFp8FewCodes(
        {.x = x, .live = live, .w = w, .y = a.out.data(), .y_stride = a.out.stride(0)}, stream);
  }
  LaunchFp8Gemm({.x = x,
                 .w = w,
                 .groups = {.counts = live, .capacity = tokens},
                 .out = a.out.data(),
                 .out_stride = a.out.stride(0),
                 .output = f32 ? Fp8GemmOutput::kF32 : Fp8GemmOutput::kBF16,
                 .batch_invariant = a.batch_invariant},
                stream);
}

}  // namespace

bool LinearHopperReadsCopy(const PackedWeight& weight, int64_t tokens) {
  const CudaWeight& w = AsCuda(&weight);
  if (tokens > kFp8FewDenseTokens || !Fp8WeightsFit(w)) return true;
  const Fp8Weights of = Fp8WeightsOf(w);
  // gate and up of few tokens read codes in a kernel of their own, or none.
  if (of.parts == 2) return Fp8FewCodesPays(of, tokens, true);
  return !Fp8FewTokensHolds(of);
}

size_t LinearHopperWorkspace(const Stream& stream, const LinearArgs& a) {
  if (!Fp8Fits(a)) return LinearCudaWorkspace(stream, a);
  Arena arena = Arena::Measuring();
  TakeQuantized(arena, a.x.dim(0), *a.weight);
  return arena.used();
}

void LinearHopper(OpContext& context, const LinearArgs& a) {
  if (a.x.dim(0) == 0) return;
  if (Fp8Fits(a)) {
    LaunchFp8(a, context.workspace, Cuda(context).get());
  } else if (Bf16LinearFits(a)) {
    LaunchBf16ProductOnHopper(Bf16ProductOf(a), Cuda(context).get());
  } else {
    return LinearCuda(context, a);
  }
  Cuda(context).CheckLaunch("linear", a.x);
}

}  // namespace fathom
