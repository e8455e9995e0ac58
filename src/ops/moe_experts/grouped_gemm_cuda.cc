// The experts of a step, kernel by kernel.
#include "ops/moe_experts/grouped_gemm_cuda.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/gpu.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/fp8_few_tokens.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

int64_t Runs(int64_t channels) {
  return (channels + 127) / 128;
}

Arena ArenaOf(const Fp8ExpertsParams& p) {
  return Arena(p.workspace.data(), p.workspace.size());
}

struct Buffers {
  Buffers(const Fp8ExpertsParams& p, Arena arena) {
    pairs = p.tokens * p.topk;
    pitch = Fp8ScalePitch(pairs);
    const int64_t hidden = p.gate_up.in, inter = p.down.in;
    counts = arena.Take<int32_t>(p.gate_up.count);
    begins = arena.Take<int32_t>(p.gate_up.count);
    places = arena.Take<int32_t>(pairs);
    x_codes = arena.Take<uint8_t>(pairs * hidden);
    x_scales = arena.Take<float>(Runs(hidden) * pitch);
    product_codes = arena.Take<uint8_t>(pairs * inter);
    product_scales = arena.Take<float>(Runs(inter) * pitch);
    y = arena.Take<__nv_bfloat16>(pairs * hidden);
    used = arena.used();
  }
  size_t used;
  int64_t pairs, pitch;
  int32_t *counts, *begins, *places;
  uint8_t *x_codes, *product_codes;
  float *x_scales, *product_scales;
  __nv_bfloat16* y;
};

// Of few tokens: nothing is sorted, and a pair's place is the pair.
struct FewTokensBuffers {
  FewTokensBuffers(const Fp8ExpertsParams& p, Arena arena) {
    const int64_t pairs = std::min(p.tokens, kFp8FewTokens) * p.topk;
    product = arena.Take<float>(pairs * p.down.in);
    y = arena.Take<__nv_bfloat16>(pairs * p.gate_up.in);
    used = arena.used();
  }
  size_t used;
  float* product;
  __nv_bfloat16* y;
};

void LaunchFewTokens(const Fp8ExpertsParams& p, cudaStream_t stream) {
  const int64_t hidden = p.gate_up.in, inter = p.down.in;
  const FewTokensBuffers b(p, ArenaOf(p));
  LaunchFp8FewTokens({.x = p.x,
                      .x_stride = p.x_stride,
                      .scale_ue8m0 = p.scale_ue8m0,
                      .tokens = p.tokens,
                      .live = p.live,
                      .w = p.gate_up,
                      .ids = p.ids,
                      .topk = p.topk,
                      .shared = p.shared,
                      .output = Fp8FewTokensOutput::kSilu,
                      .y = b.product,
                      .y_stride = inter},
                     stream);
  LaunchFp8FewTokens({.x = b.product,
                      .x_f32 = true,
                      .x_stride = inter,
                      .scale_ue8m0 = p.scale_ue8m0,
                      .tokens = p.tokens,
                      .live = p.live,
                      .w = p.down,
                      .ids = p.ids,
                      .topk = p.topk,
                      .shared = p.shared,
                      .x_of_pairs = true,
                      .early = true,
                      .y = b.y,
                      .y_stride = hidden},
                     stream);
  LaunchCombine({.y = b.y,
                 .weights = p.weights,
                 .live = p.live,
                 .tokens = p.tokens,
                 .topk = p.topk,
                 .hidden = hidden,
                 .out = p.out},
                p.norm, stream);
}

}  // namespace

size_t Fp8ExpertsWorkspace(const Fp8ExpertsParams& p) {
  // A smaller step needs no more than a larger one.
  return std::max(FewTokensBuffers(p, Arena::Measuring()).used,
                  Buffers(p, Arena::Measuring()).used);
}

void LaunchFp8Experts(const Fp8ExpertsParams& p, cudaStream_t stream) {
  const int64_t hidden = p.gate_up.in, inter = p.down.in, experts = p.gate_up.count;
  CHECK(p.gate_up.parts == 2 && p.gate_up.part_out == inter && p.down.parts == 1 &&
            p.down.part_out == hidden && p.down.count == experts,
        "fp8_experts: gate_up {} x {} x {} x {}, down {} x {} x {} x {}", experts, p.gate_up.parts,
        p.gate_up.part_out, p.gate_up.in, p.down.count, p.down.parts, p.down.part_out, p.down.in);
  if (p.tokens == 0) return;
  // The same bits.
  if (p.tokens <= kFp8FewTokens && p.tokens * p.topk <= kFp8MostPairs)
    return LaunchFewTokens(p, stream);
  const Buffers b(p, ArenaOf(p));
  LaunchSortPairs({.ids = p.ids,
                   .live = p.live,
                   .tokens = p.tokens,
                   .topk = p.topk,
                   .experts = static_cast<int32_t>(experts),
                   .counts = b.counts,
                   .begins = b.begins,
                   .places = b.places,
                   .on_hopper = true},
                  stream);
  LaunchQuantizeTokens({.x = p.x,
                        .stride = p.x_stride,
                        .capacity = p.tokens,
                        .channels = hidden,
                        .live = p.live,
                        .places = b.places,
                        .copies = p.topk,
                        .out = {b.x_codes, b.x_scales, b.pitch, p.scale_ue8m0}},
                       stream);
  // Experts share the pairs about evenly; what is more than that takes more tiles.
  const Fp8TokenGroups groups = {.counts = b.counts,
                                 .begins = b.begins,
                                 .capacity = b.pairs,
                                 .typical = std::max<int64_t>(1, b.pairs / experts)};
  LaunchFp8GemmSilu({.x = {b.x_codes, b.x_scales, b.pairs, hidden, b.pitch},
                     .w = p.gate_up,
                     .groups = groups,
                     .out = b.product_codes,
                     .out_scales = b.product_scales,
                     .out_scale_pitch = b.pitch,
                     .scale_ue8m0 = p.scale_ue8m0,
                     .counts_early = true},
                    stream);
  LaunchFp8Gemm({.x = {b.product_codes, b.product_scales, b.pairs, inter, b.pitch},
                 .w = p.down,
                 .groups = groups,
                 .out = b.y,
                 .out_stride = hidden,
                 .counts_early = true},
                stream);
  LaunchCombine({.y = b.y,
                 .places = b.places,
                 .weights = p.weights,
                 .live = p.live,
                 .tokens = p.tokens,
                 .topk = p.topk,
                 .hidden = hidden,
                 .out = p.out},
                p.norm, stream);
  Gpu::OfThread().Check(cudaGetLastError());
}

}  // namespace fathom
