#include "model/attention.h"

#include <algorithm>
#include <span>
#include <vector>

namespace fathom {
namespace {

// q_latent = q_nope W_UK; attention over the latents themselves; out = attn_latent W_UV^T.
void AttendAbsorbed(OpRunner& run, const ModelConfig& config, const AttentionWeights& w,
                    const Batch& batch, const Rotary& rotary, const KvPages& pages,
                    const QuantizedCopy& attn_quantized, Activations& a) {
  const Ops& ops = run.ops();
  const int64_t tokens = batch.absorbed_tokens(), nope = config.qk_nope_head_dim;
  const TensorView q = batch.Absorbed(a.q);
  const TensorView q_latent = First(a.q_latent, tokens), attended = First(a.attn_latent, tokens);
  run(ops.head_linear, {.x = q.Slice(2, 0, nope),
                        .weight = w.w_uk.weight.get(),
                        .live = batch.absorbed_live,
                        .out = q_latent,
                        .beside_last = true});
  run(ops.attend_absorbed, {.q_latent = q_latent,
                            .q_rope = q.Slice(2, nope, config.qk_head_dim()),
                            .tokens = {.slots = batch.Absorbed(batch.map.slots),
                                       .positions = batch.Absorbed(batch.map.positions),
                                       .page_table = batch.map.page_table,
                                       .live = batch.absorbed_live},
                            .pages = pages,
                            .scale = rotary.softmax_scale,
                            .out = attended});
  run(ops.head_linear, {.x = attended,
                        .weight = w.w_uv.weight.get(),
                        .live = batch.absorbed_live,
                        .out = batch.Absorbed(a.attn),
                        .quantized = attn_quantized});
}

// Pieces of rows' contexts, which together are at most a chunk: keys and values projected up per
// head.
void AttendPieces(OpRunner& run, const ModelConfig& config, const AttentionWeights& w,
                  const Batch& batch, const Rotary& rotary, const KvPages& pages,
                  std::span<const ContextPiece> pieces, Activations& a) {
  const Ops& ops = run.ops();
  const int64_t heads = config.num_heads, width = config.qk_nope_head_dim + config.v_head_dim;
  const int64_t context = pieces.back().at + pieces.back().count;
  const TensorView latent = First(a.context_latent, context);
  const TensorView rope = First(a.context_rope, context), kv = First(a.context_kv, context);
  run(ops.gather_context, {.pages = pages,
                           .page_table = batch.map.page_table,
                           .pieces = pieces,
                           .latent = latent,
                           .rope = rope});
  run(ops.linear, {.x = latent,
                   .weight = w.kv_b.weight.get(),
                   .live = a.numbers.Slice(0, context, context + 1),
                   .out = kv});
  run(ops.attend_expanded, {.q = First(a.q, batch.tokens),
                            .positions = batch.map.positions,
                            .kv = kv.Reshaped({context, heads, width}),
                            .rope = rope,
                            .pieces = pieces,
                            .scale = rotary.softmax_scale,
                            .out = First(a.attn, batch.tokens),
                            .lse = First(a.lse, batch.tokens)});
}

// Cuts the contexts of the batch's expanded rows at multiples of a chunk, so that a row's bits do
// not depend on the others, and attends to as many of these pieces at a time as a chunk has room
// for. Never two of one row: all but a row's last are a whole chunk.
void AttendExpanded(OpRunner& run, const ModelConfig& config, const AttentionWeights& w,
                    const Batch& batch, const Rotary& rotary, const KvPages& pages,
                    Activations& a) {
  const int64_t chunk = run.ops().context_chunk;
  std::vector<ContextPiece> pieces;
  int64_t filled = 0;
  const auto attend = [&] {
    AttendPieces(run, config, w, batch, rotary, pages, pieces, a);
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

}  // namespace

int64_t AbsorbedRowLimit(const ModelConfig& config) {
  const int64_t latent = config.kv_lora_rank, rope = config.qk_rope_head_dim;
  const int64_t width = config.qk_nope_head_dim + config.v_head_dim;
  const int64_t dearer = (2 * latent + rope) - (width + rope);  // per query, key and head
  return dearer <= 0 ? INT64_MAX : latent * width / dearer;
}

void Attend(OpRunner& run, const ModelConfig& config, const AttentionWeights& w, const Batch& batch,
            const Rotary& rotary, const KvPages& pages, Activations& a) {
  const Ops& ops = run.ops();
  const int64_t tokens = batch.tokens, heads = config.num_heads;
  const TensorView live = batch.map.live, normed = First(a.normed, tokens);
  const TensorView q = First(a.q, tokens), q_kv_a = First(a.q_kv_a, tokens);
  const int64_t width = q_kv_a.dim(1), kv_begin = width - config.latent_dim();
  const float eps = config.rms_norm_eps;

  run(ops.linear, {.x = normed,
                   .x_quantized = First(a.normed_quantized, tokens, w.q_kv_a.weight.get()),
                   .weight = w.q_kv_a.weight.get(),
                   .live = live,
                   .out = q_kv_a});
  if (w.q_b.weight != nullptr) {
    const TensorView q_a = q_kv_a.Slice(1, 0, kv_begin);
    const QuantizedCopy copy = First(a.q_a_quantized, tokens, w.q_b.weight.get());
    run(ops.rms_norm, {.x = q_a,
                       .weight = w.q_a_norm.view,
                       .eps = eps,
                       .live = live,
                       .out = q_a,
                       .quantized = copy});
    run(ops.linear, {.x = q_a,
                     .x_quantized = copy,
                     .weight = w.q_b.weight.get(),
                     .live = live,
                     .out = q.Reshaped({tokens, heads * config.qk_head_dim()})});
  }
  run(ops.rotate_and_cache, {.kv_a = q_kv_a.Slice(1, kv_begin, width),
                             .latent_norm = w.kv_a_norm.view,
                             .eps = eps,
                             .q_rope = q.Slice(2, config.qk_nope_head_dim, config.qk_head_dim()),
                             .cos_sin = rotary.cos_sin,
                             .tokens = batch.map,
                             .pages = pages});

  QuantizedCopy attn_quantized;  // of all tokens, or of none
  if (batch.expanded.empty()) attn_quantized = First(a.attn_quantized, tokens, w.o.weight.get());
  if (batch.absorbed_tokens() > 0) {
    AttendAbsorbed(run, config, w, batch, rotary, pages, attn_quantized, a);
  }
  AttendExpanded(run, config, w, batch, rotary, pages, a);
  run(ops.linear, {.x = First(a.attn, tokens).Reshaped({tokens, heads * config.v_head_dim}),
                   .x_quantized = attn_quantized,
                   .weight = w.o.weight.get(),
                   .live = live,
                   .out = First(a.branch, tokens)});
}

}  // namespace fathom
