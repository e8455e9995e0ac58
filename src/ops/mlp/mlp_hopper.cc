// MLPs by Hopper's kernels, FP8 and BF16, where the weights fit, else by the portable ones.
#include <algorithm>

#include "ops/hopper_ops.h"
#include "ops/mlp/mlp_cuda.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/bf16_product.h"
#include "products/hopper/fp8_few_codes.h"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_weights.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

bool Fp8Fits(const MlpArgs& a) {
  return Fp8WeightsFit(AsCuda(a.gate_up)) && Fp8WeightsFit(AsCuda(a.down)) &&
         AsCuda(a.gate_up).parts == 2 && a.x.stride(0) % 8 == 0;
}

// Quantised tokens before each of the two products; of few, too, what the first makes, F32.
struct Buffers {
  QuantizedOut x, product;
  float* few;
  size_t used;
};
static_assert(kFp8FewCodesTokens <= kFp8FewTokens);
Buffers Layout(const MlpArgs& a, Arena arena) {
  const int64_t tokens = a.x.dim(0);
  Buffers b{};
  b.few = arena.Take<float>(std::min(tokens, kFp8FewTokens) * a.down->in);
  b.x = TakeQuantized(arena, tokens, *a.gate_up);
  b.product = TakeQuantized(arena, tokens, *a.down);
  b.used = arena.used();
  return b;
}

const int32_t* Live(const MlpArgs& a) {
  return static_cast<const int32_t*>(a.live.data());
}

// x as the first product reads it.
Fp8Tokens QuantizedX(const MlpArgs& a, const Buffers& b, cudaStream_t stream) {
  if (HasCodes(a.x_quantized)) return Fp8TokensOf(a.x_quantized);
  LaunchQuantizeTokens({.x = a.x.data(),
                        .stride = a.x.stride(0),
                        .capacity = a.x.dim(0),
                        .channels = a.gate_up->in,
                        .live = Live(a),
                        .out = b.x},
                       stream);
  return Fp8TokensOf(b.x, a.x.dim(0), *a.gate_up);
}

// gate and up of few tokens, F32; `codes`: of quantised ones.
void FewGateUp(const MlpArgs& a, const Buffers& b, bool codes, cudaStream_t stream) {
  const Fp8Weights w = Fp8WeightsOf(AsCuda(a.gate_up));
  if (codes) {
    LaunchFp8FewCodes({.x = QuantizedX(a, b, stream),
                       .live = Live(a),
                       .w = w,
                       .y = b.few,
                       .y_stride = a.down->in},
                      stream);
    return;
  }
  LaunchFp8FewTokens({.x = a.x.data(),
                      .x_stride = a.x.stride(0),
                      .scale_ue8m0 = a.gate_up->scale_ue8m0,
                      .tokens = a.x.dim(0),
                      .live = Live(a),
                      .w = w,
                      .output = Fp8FewTokensOutput::kSilu,
                      .y = b.few,
                      .y_stride = a.down->in},
                     stream);
}

void FewDown(const MlpArgs& a, const Buffers& b, bool codes, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0), width = a.down->in;
  const Fp8Weights w = Fp8WeightsOf(AsCuda(a.down));
  if (codes) {
    LaunchQuantizeTokens({.x = b.few,
                          .x_f32 = true,
                          .stride = width,
                          .capacity = tokens,
                          .channels = width,
                          .live = Live(a),
                          .out = b.product},
                         stream);
    LaunchFp8FewCodes({.x = Fp8TokensOf(b.product, tokens, *a.down),
                       .live = Live(a),
                       .w = w,
                       .y = a.out.data(),
                       .y_stride = a.out.stride(0)},
                      stream);
    return;
  }
  LaunchFp8FewTokens({.x = b.few,
                      .x_f32 = true,
                      .x_stride = width,
                      .scale_ue8m0 = a.down->scale_ue8m0,
                      .tokens = tokens,
                      .live = Live(a),
                      .w = w,
                      .y = a.out.data(),
                      .y_stride = a.out.stride(0)},
                     stream);
}

void ManyTokens(const MlpArgs& a, const Buffers& b, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  const Fp8TokenGroups groups = {.counts = Live(a), .capacity = tokens};
  LaunchFp8GemmSilu({.x = QuantizedX(a, b, stream),
                     .w = Fp8WeightsOf(AsCuda(a.gate_up)),
                     .groups = groups,
                     .out = b.product.codes,
                     .out_scales = b.product.scales,
                     .out_scale_pitch = b.product.scale_pitch,
                     .scale_ue8m0 = b.product.scale_ue8m0},
                    stream);
  LaunchFp8Gemm({.x = Fp8TokensOf(b.product, tokens, *a.down),
                 .w = Fp8WeightsOf(AsCuda(a.down)),
                 .groups = groups,
                 .out = a.out.data(),
                 .out_stride = a.out.stride(0)},
                stream);
}

// By the number of tokens, to the same bits.
void LaunchFp8(const MlpArgs& a, std::span<std::byte> workspace, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  const Buffers b = Layout(a, Arena(workspace.data(), workspace.size()));
  // Only with `down` likewise, which else has each block quantise its wide input.
  const bool down = Fp8FewCodesPays(Fp8WeightsOf(AsCuda(a.down)), tokens, false),
             gate_up = down && Fp8FewCodesPays(Fp8WeightsOf(AsCuda(a.gate_up)), tokens,
                                               HasCodes(a.x_quantized));
  if (tokens > kFp8FewDenseTokens && !gate_up) return ManyTokens(a, b, stream);
  FewGateUp(a, b, gate_up, stream);
  FewDown(a, b, down, stream);
}

}  // namespace

size_t MlpHopperWorkspace(const Stream& stream, const MlpArgs& a) {
  if (!Fp8Fits(a)) return MlpCudaWorkspace(stream, a);
  return Layout(a, Arena::Measuring()).used;
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
