#include "model/attention.h"

#include <algorithm>
#include <vector>

namespace fathom {

int64_t AbsorbedLimit(const ModelConfig& config) {
  const int64_t latent = config.kv_lora_rank, rope = config.qk_rope_head_dim;
  const int64_t width = config.qk_nope_head_dim + config.v_head_dim;
  const int64_t dearer = (2 * latent + rope) - (width + rope);  // per query, key and head
  return dearer <= 0 ? INT64_MAX : latent * width / dearer;
}

void Attention::Run(const AttentionWeights& w, const Batch& batch, const KvPages& pages) {
  const int64_t tokens = batch.tokens;
  ProjectDown(w, batch);
  if (w.q_b.weight != nullptr) ProjectQueries(w, batch);
  RotateAndCache(w, batch, pages);
  QuantizedCopy quantized;  // of all tokens, or of none
  if (batch.expanded.empty())
    quantized = First(run_.ops(), a_.attn_quantized, tokens, w.o.weight.get());
  if (batch.absorbed_tokens() > 0) AttendAbsorbed(w, batch, pages, quantized);
  AttendExpanded(w, batch, pages);
  run_(run_.ops().linear,
       {.x = First(a_.attn, tokens).Reshaped({tokens, config_.num_heads * config_.v_head_dim}),
        .x_quantized = quantized,
        .weight = w.o.weight.get(),
        .live = batch.map.live,
        .out = First(a_.branch, tokens),
        .batch_invariant = batch_invariant_});
}

// The queries that are turned are no one's: the op has no form without them.
void Attention::Cache(const AttentionWeights& w, const Batch& batch, const KvPages& pages) {
  ProjectDown(w, batch);
  RotateAndCache(w, batch, pages);
}

TensorView Attention::KvA(const Batch& batch) const {
  const int64_t width = a_.q_kv_a.dim(1);
  return First(a_.q_kv_a, batch.tokens).Slice(1, width - config_.latent_dim(), width);
}

// [c^Q or q; c^KV and k^R] = [W^DQ or W^Q; W^DKV and W^KR] h (section 2.1.2 and 2.1.3): q_a_proj or
// q_proj, and kv_a_proj_with_mqa of transformers.
void Attention::ProjectDown(const AttentionWeights& w, const Batch& batch) {
  const PackedWeight* const weight = w.q_kv_a.weight.get();
  run_(run_.ops().linear,
       {.x = First(a_.normed, batch.tokens),
        .x_quantized = First(run_.ops(), a_.normed_quantized, batch.tokens, weight),
        .weight = weight,
        .live = batch.map.live,
        .out = First(a_.q_kv_a, batch.tokens),
        .batch_invariant = batch_invariant_});
}

// q = W^UQ norm(c^Q): q_a_layernorm and q_b_proj of transformers.
void Attention::ProjectQueries(const AttentionWeights& w, const Batch& batch) {
  const Ops& ops = run_.ops();
  const int64_t tokens = batch.tokens, width = a_.q_kv_a.dim(1);
  const TensorView live = batch.map.live;
  const TensorView q_a = First(a_.q_kv_a, tokens).Slice(1, 0, width - config_.latent_dim());
  const QuantizedCopy copy = First(run_.ops(), a_.q_a_quantized, tokens, w.q_b.weight.get());
  run_(ops.rms_norm, {.x = q_a,
                      .weight = w.q_a_norm.view,
                      .eps = config_.rms_norm_eps,
                      .live = live,
                      .out = q_a,
                      .quantized = copy});
  run_(ops.linear,
       {.x = q_a,
        .x_quantized = copy,
        .weight = w.q_b.weight.get(),
        .live = live,
        .out = First(a_.q, tokens).Reshaped({tokens, config_.num_heads * config_.qk_head_dim()}),
        .batch_invariant = batch_invariant_});
}

void Attention::RotateAndCache(const AttentionWeights& w, const Batch& batch,
                               const KvPages& pages) {
  const TensorView q = First(a_.q, batch.tokens);
  run_(run_.ops().rotate_and_cache,
       {.kv_a = KvA(batch),
        .latent_norm = w.kv_a_norm.view,
        .eps = config_.rms_norm_eps,
        .q_rope = q.Slice(2, config_.qk_nope_head_dim, config_.qk_head_dim()),
        .cos_sin = rotary_.cos_sin,
        .tokens = batch.map,
        .pages = pages});
}

// q_latent = q_nope W_UK; attention over the latents themselves; out = attn_latent W_UV^T: W^UK
// and W^UV absorbed (section 2.1.2).
void Attention::AttendAbsorbed(const AttentionWeights& w, const Batch& batch, const KvPages& pages,
                               const QuantizedCopy& quantized) {
  const Ops& ops = run_.ops();
  const int64_t tokens = batch.absorbed_tokens(), nope = config_.qk_nope_head_dim;
  const TensorView q = batch.Absorbed(a_.q);
  const TensorView q_latent = First(a_.q_latent, tokens), attended = First(a_.attn_latent, tokens);
  run_(ops.head_linear, {.x = q.Slice(2, 0, nope),
                         .weight = w.w_uk.weight.get(),
                         .live = batch.absorbed_live,
                         .out = q_latent});
  run_(ops.attend_absorbed, {.q_latent = q_latent,
                             .q_rope = q.Slice(2, nope, config_.qk_head_dim()),
                             .tokens = {.slots = batch.Absorbed(batch.map.slots),
                                        .positions = batch.Absorbed(batch.map.positions),
                                        .page_table = batch.map.page_table,
                                        .live = batch.absorbed_live},
                             .pages = pages,
                             .scale = rotary_.softmax_scale,
                             .out = attended,
                             .step_rows = batch_invariant_ ? 0 : batch.absorbed_rows,
                             .values = {.x = attended,
                                        .weight = w.w_uv.weight.get(),
                                        .live = batch.absorbed_live,
                                        .out = batch.Absorbed(a_.attn),
                                        .quantized = quantized}});
}

// Cuts the contexts of the batch's expanded rows at multiples of a chunk, so that a row's bits do
// not depend on the others, and attends to as many of these pieces at a time as a chunk has room
// for. Never two of one row: all but a row's last are a whole chunk.
void Attention::AttendExpanded(const AttentionWeights& w, const Batch& batch,
                               const KvPages& pages) {
  const int64_t chunk = run_.ops().context_chunk;
  std::vector<ContextPiece> pieces;
  int64_t filled = 0;
  const auto attend = [&] {
    AttendPieces(w, batch, pages, pieces);
    pieces.clear();
    filled = 0;
  };
  for (const ExpandedRow& row : batch.expanded) {
    const int64_t end = row.position + row.num_tokens;
    for (int64_t begin = 0; begin < end; begin += chunk) {
      const int64_t count = std::min(chunk, end - begin);
      if (filled + count > chunk || pieces.size() == kMaxContextPieces) attend();
      pieces.push_back({.slot = static_cast<int32_t>(Raw(row.slot)),
                        .begin = static_cast<int32_t>(begin),
                        .count = static_cast<int32_t>(count),
                        .at = static_cast<int32_t>(filled),
                        .token_begin = static_cast<int32_t>(row.token_begin),
                        .tokens = static_cast<int32_t>(row.num_tokens)});
      filled += count;
    }
  }
  if (!pieces.empty()) attend();
}

// Pieces of rows' contexts, which together are at most a chunk: keys and values projected up per
// head. k^C = W^UK c^KV and v^C = W^UV c^KV (section 2.1.2), softmax of (q^C k^C + q^R k^R) scale
// (2.1.3): expand_kv and eager_attention_forward of transformers, piece by piece.
void Attention::AttendPieces(const AttentionWeights& w, const Batch& batch, const KvPages& pages,
                             std::span<const ContextPiece> pieces) {
  const Ops& ops = run_.ops();
  const int64_t heads = config_.num_heads, width = config_.qk_nope_head_dim + config_.v_head_dim;
  const int64_t context = pieces.back().at + pieces.back().count;
  const TensorView latent = First(a_.context_latent, context);
  const TensorView rope = First(a_.context_rope, context), kv = First(a_.context_kv, context);
  run_(ops.gather_context, {.pages = pages,
                            .page_table = batch.map.page_table,
                            .pieces = pieces,
                            .latent = latent,
                            .rope = rope});
  run_(ops.linear, {.x = latent,
                    .weight = w.kv_b.weight.get(),
                    .live = a_.live_counts.Slice(0, context, context + 1),
                    .out = kv,
                    .batch_invariant = batch_invariant_});
  run_(ops.attend_expanded, {.q = First(a_.q, batch.tokens),
                             .positions = batch.map.positions,
                             .kv = kv.Reshaped({context, heads, width}),
                             .rope = rope,
                             .pieces = pieces,
                             .scale = rotary_.softmax_scale,
                             .out = First(a_.attn, batch.tokens),
                             .lse = First(a_.lse, batch.tokens)});
}

}  // namespace fathom
