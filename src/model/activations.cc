#include "model/activations.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace fathom {

size_t Activations::LayOut(const ModelConfig& config, const Ops& ops, const Tokens& most,
                           Arena arena) {
  const DType dtype = ops.activation;
  const int64_t tokens = most.step;
  const int64_t hidden = config.hidden_size, heads = config.num_heads, latent = config.kv_lora_rank;
  const int64_t experts = config.num_experts_per_tok + config.n_shared_experts;  // of a token
  x = arena.Allocate(DType::kF32, {tokens, hidden});
  for (TensorView* view : {&normed, &branch}) {
    *view = arena.Allocate(dtype, {tokens, hidden});
  }
  const auto quantized = [&](int64_t width) -> QuantizedCopy {
    if (!ops.quantized_copies) return {};
    return {.codes = arena.Allocate(DType::kF8E4M3, {tokens, width}),
            .scales = arena.Allocate(DType::kF32, {(width + 127) / 128, (tokens + 31) / 32 * 32})};
  };
  normed_quantized = quantized(hidden);
  const int64_t q_dim = config.qk_head_dim();
  const int64_t q_width = config.q_lora_rank > 0 ? config.q_lora_rank : heads * q_dim;
  const int64_t width = q_width + config.latent_dim();
  q_kv_a = arena.Allocate(dtype, {tokens, width});
  if (config.q_lora_rank > 0) {
    q_a_quantized = quantized(config.q_lora_rank);
    q = arena.Allocate(dtype, {tokens, heads, q_dim});
  } else {
    q = TensorView(q_kv_a.data(), dtype, {tokens, heads, q_dim}, {width, q_dim, 1});
  }
  q_latent = arena.Allocate(dtype, {tokens, heads, latent});
  attn_latent = arena.Allocate(dtype, {tokens, heads, latent});
  attn = arena.Allocate(dtype, {tokens, heads, config.v_head_dim});
  attn_quantized = quantized(heads * config.v_head_dim);
  lse = arena.Allocate(DType::kF32, {tokens, heads});
  context_latent = arena.Allocate(dtype, {ops.context_chunk, latent});
  context_rope = arena.Allocate(dtype, {ops.context_chunk, config.qk_rope_head_dim});
  context_kv = arena.Allocate(
      dtype, {ops.context_chunk, heads * (config.qk_nope_head_dim + config.v_head_dim)});
  if (config.n_routed_experts > 0) {
    expert_ids = arena.Allocate(DType::kI32, {most.routed, experts});
    expert_weights = arena.Allocate(DType::kF32, {most.routed, experts});
  }
  if (config.num_mtp_layers > 0) mtp_in = arena.Allocate(dtype, {tokens, 2 * hidden});
  live_counts = arena.Allocate(DType::kI32, {ops.context_chunk + 1});
  return arena.used();
}

size_t Activations::Bytes(const ModelConfig& config, const Ops& ops, const Tokens& tokens) {
  return Activations().LayOut(config, ops, tokens, Arena::Measuring());
}

Activations::Activations(const ModelConfig& config, const Ops& ops, const Tokens& tokens,
                         Device& device) {
  memory = device.Allocate(Bytes(config, ops, tokens));
  LayOut(config, ops, tokens, Arena(memory->data(), memory->size()));

  std::vector<int32_t> counts(static_cast<size_t>(ops.context_chunk + 1));
  std::iota(counts.begin(), counts.end(), 0);
  device.Upload(live_counts, std::as_bytes(std::span(counts)));
  if (expert_ids.absent() || config.n_shared_experts == 0) return;
  // Shared experts' ids and weights never change; the router overwrites those before them.
  const int64_t experts = expert_ids.dim(1);
  std::vector<int32_t> ids(static_cast<size_t>(expert_ids.elements()));
  for (int64_t i = 0; i < expert_ids.elements(); ++i) {
    const int64_t shared = std::max<int64_t>(0, i % experts - config.num_experts_per_tok);
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(config.n_routed_experts + shared);
  }
  const std::vector<float> ones(ids.size(), 1.0f);
  device.Upload(expert_ids, std::as_bytes(std::span(ids)));
  device.Upload(expert_weights, std::as_bytes(std::span(ones)));
}

}  // namespace fathom
