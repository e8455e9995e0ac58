#include "model/model.h"

#include <algorithm>
#include <utility>

#include "model/mlp.h"
#include "model/rope.h"

namespace fathom {

Status CheckLimits(const ModelConfig& config, const Ops& ops, const ParallelLayout& layout) {
  const auto check = [&](const char* what, int64_t value, int64_t limit) -> Status {
    if (value <= limit) return {};
    return Unimplemented("{} {}: {} ops take at most {}", what, value, ops.name, limit);
  };
  TRY(check("hidden_size", config.hidden_size, ops.limits.norm_width));
  TRY(check("q_lora_rank", config.q_lora_rank, ops.limits.norm_width));
  TRY(check("n_routed_experts", config.n_routed_experts, ops.limits.experts));
  TRY(check("num_experts_per_tok", config.num_experts_per_tok, ops.limits.topk));
  TRY(check("--data-parallel-size times --tensor-parallel-size", layout.stage_ranks(),
            ops.limits.ranks));
  TRY(check("--pipeline-parallel-size", layout.pipeline, ops.limits.ranks));
  return CheckLayout(config, layout);
}

size_t Model::ActivationBytes(const ModelConfig& config, const Ops& ops,
                              const ModelOptions& options) {
  const Shard& shard = options.shard;
  const int64_t angles = options.max_model_len * config.qk_rope_head_dim;
  const bool gathers = shard.layout.tensor > 1 && shard.last_stage();
  const int64_t logits =
      !gathers ? 0 : options.max_logit_vectors * shard.Of(config.vocab_size).size();
  return Activations::Bytes(ConfigOfRank(config, shard), ops, TokensOf(config, ops, options)) +
         static_cast<size_t>(angles + logits) * sizeof(float);
}

Activations::Tokens Model::TokensOf(const ModelConfig& config, const Ops& ops,
                                    const ModelOptions& options) {
  return {.step = options.max_tokens,
          .routed = PairExchange::TokensRouted(config, options.shard, ops, options.max_tokens)};
}

Result<std::unique_ptr<Model>> Model::Load(const Checkpoint& checkpoint, const Ops& ops,
                                           Device& device, const ModelOptions& options,
                                           const LoadProgress& progress,
                                           const ReadWindow::Reader& reader) {
  ModelOptions filled = options;
  if (filled.max_model_len == 0) filled.max_model_len = checkpoint.config().max_position_embeddings;
  if (filled.absorbed_limit < 0) {
    filled.absorbed_limit = AbsorbedLimit(checkpoint.config());
  }
  TRY(CheckLimits(checkpoint.config(), ops, filled.shard.layout));
  ModelWeights weights = TRY(LoadWeights(checkpoint, ops, device, filled.shard, progress, reader));
  std::unique_ptr<Model> model(new Model(checkpoint, ops, device, filled, std::move(weights)));
  const auto work_space = static_cast<int64_t>(model->run_.workspace_bytes());
  if (const int64_t free = device.FreeBytes(); free > 0 && work_space > free) {
    return ResourceExhausted(
        "steps of {} tokens (--max-num-batched-tokens) need {:.1f} GiB of work space, and {:.1f} "
        "can be had",
        filled.max_tokens, static_cast<double>(work_space) / (1 << 30),
        static_cast<double>(free) / (1 << 30));
  }
  model->run_.Allocate();
  return model;
}

Model::Model(const Checkpoint& checkpoint, const Ops& ops, Device& device,
             const ModelOptions& options, ModelWeights weights)
    : config_(checkpoint.config()),
      options_(options),
      part_(ConfigOfRank(config_, options.shard)),
      weights_(std::move(weights)),
      activations_(part_, ops, TokensOf(config_, ops, options), device),
      run_(ops, device),
      attention_(run_, part_, rotary_, activations_, options_.batch_invariant) {
  const std::vector<float> table = CosSinTable(config_, options_.max_model_len);
  cos_sin_.memory = device.Allocate(table.size() * sizeof(float));
  cos_sin_.view = TensorView(cos_sin_.memory->data(), DType::kF32,
                             {options_.max_model_len, 2, config_.qk_rope_head_dim / 2});
  device.Upload(cos_sin_.view, std::as_bytes(std::span(table)));
  rotary_ = {cos_sin_.view, SoftmaxScale(config_)};
  if (tensor_parallel() && options_.shard.last_stage()) {
    const int64_t vocab = options_.shard.Of(config_.vocab_size).size();
    const auto bytes = static_cast<size_t>(options_.max_logit_vectors * vocab) * sizeof(float);
    logits_part_.memory = device.Allocate(bytes);
    logits_part_.view =
        TensorView(logits_part_.memory->data(), DType::kF32, {options_.max_logit_vectors, vocab});
  }
  if (PairExchange::UsedBy(config_, options_.shard.layout)) {
    exchange_.emplace(config_, options_.shard, ops, options_.max_tokens, device);
  }
  if (options_.synthetic_routing) DrawSyntheticRouting(device);
  MeasureWorkspace(device);
}

const TensorView& Model::expert_ids() const {
  const std::vector<LayerWeights>& layers = weights_.layers;
  const auto last = std::find_if(layers.rbegin(), layers.rend(),
                                 [](const LayerWeights& layer) { return layer.moe.has_value(); });
  const bool synthetic = options_.synthetic_routing && last != layers.rend();
  return synthetic ? last->moe->synthetic_ids.view : activations_.expert_ids;
}

void Model::DrawSyntheticRouting(Device& device) {
  int moe_layer = 0;
  for (int i = 0; i < weights_.first_layer; ++i) moe_layer += config_.IsMoeLayer(i);
  for (LayerWeights& layer : weights_.layers) {
    if (!layer.moe) continue;
    // Ranks that cut experts between them compute the same tokens.
    const std::vector<int32_t> ids = options_.synthetic_routing->Draw(
        config_, activations_.expert_ids.dim(0), moe_layer++,
        options_.shard.layout.cuts_over_groups() ? 0 : options_.shard.data_rank);
    PlainTensor& drawn = layer.moe->synthetic_ids;
    drawn.memory = device.Allocate(ids.size() * sizeof(int32_t));
    drawn.view = TensorView(drawn.memory->data(), DType::kI32,
                            {activations_.expert_ids.dim(0), activations_.expert_ids.dim(1)});
    device.Upload(drawn.view, std::as_bytes(std::span(ids)));
    synthetic_routing_bytes_ += drawn.memory->size();
  }
}

KvFormat Model::kv_format() const {
  return MakeKvFormat(config_, options_.kv_cache.value_or(run_.ops().kv_cache));
}

TensorView Model::Forward(const Batch& batch, const KvPool& pool) {
  Activations& a = activations_;
  const RankGroups& groups = options_.shard.groups;
  const TensorView x = First(a.x, batch.tokens);
  Pending pending = Pending::kNothing;
  const TensorView live = batch.map.live;
  if (groups.before == nullptr) {
    pending = Embed(batch);
  } else if (options_.shard.layout.bf16_residual) {
    const TensorView rounded = RoundedResidual(batch.tokens);
    run_(run_.ops().all_gather, Broadcast(rounded, live, groups.before));
    run_(run_.ops().convert, {.x = rounded, .live = live, .out = x});
  } else {
    run_(run_.ops().all_gather, Broadcast(x, live, groups.before));
  }
  // Before another stage it adds what waits. Nobody reads what it norms then: any weight will do.
  const NormOf last = {groups.after == nullptr ? weights_.final_norm
                                               : weights_.layers.back().mlp_norm};
  const std::vector<LayerWeights>& layers = weights_.layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    pending = RunLayer(layers[i], batch, pool.Layer(static_cast<int64_t>(i)), pending,
                       i + 1 < layers.size() ? FirstNorm(layers[i + 1]) : last);
  }
  Norm(last, batch, pending);
  return hidden(batch.tokens);
}

TensorView Model::hidden(int64_t tokens) const {
  return First(activations_.normed, tokens);
}

void Model::HandOn(const Batch& batch) {
  Communicator* const after = options_.shard.groups.after;
  if (after == nullptr) return;
  const TensorView x = First(activations_.x, batch.tokens), live = batch.map.live;
  if (!options_.shard.layout.bf16_residual) {
    return run_(run_.ops().all_gather, Broadcast(x, live, after));
  }
  const TensorView rounded = RoundedResidual(batch.tokens);
  run_(run_.ops().convert, {.x = x, .live = live, .out = rounded});
  run_(run_.ops().all_gather, Broadcast(rounded, live, after));
}

TensorView Model::RoundedResidual(int64_t tokens) const {
  return TensorView(activations_.branch.data(), DType::kBF16, {tokens, config_.hidden_size});
}

void Model::BeginMtp(const MtpWeights& mtp, const Batch& batch, const TensorView& hidden) {
  Activations& a = activations_;
  const int64_t width = config_.hidden_size, tokens = batch.tokens;
  const TensorView live = batch.map.live, x = First(a.x, tokens), in = First(a.mtp_in, tokens);
  const auto norm = [&](const TensorView& from, const PlainTensor& weight, int64_t column) {
    run_(run_.ops().rms_norm, {.x = from,
                               .weight = weight.view,
                               .eps = config_.rms_norm_eps,
                               .live = live,
                               .out = in.Slice(1, column, column + width)});
  };
  norm(hidden, mtp.hidden_norm, width);
  Norm({mtp.embedding_norm}, batch, Embed(batch), in.Slice(1, 0, width));
  run_(run_.ops().linear, {.x = in, .weight = mtp.eh_proj.weight.get(), .live = live, .out = x});
}

TensorView Model::ForwardMtp(int index, const Batch& batch, const TensorView& hidden,
                             const KvPool& pool) {
  if (!options_.shard.last_stage()) return hidden;
  const MtpWeights& mtp = weights_.mtp[static_cast<size_t>(index)];
  BeginMtp(mtp, batch, hidden);
  const NormOf last = {mtp.head_norm};
  Norm(last, batch, RunLayer(mtp.layer, batch, MtpPages(index, pool), Pending::kNothing, last));
  return First(activations_.normed, batch.tokens);
}

void Model::CacheMtp(int index, const Batch& batch, const TensorView& hidden, const KvPool& pool) {
  const MtpWeights& mtp = weights_.mtp[static_cast<size_t>(index)];
  const AttentionWeights& attention = mtp.layer.attention;
  BeginMtp(mtp, batch, hidden);
  Norm(FirstNorm(mtp.layer), batch, Pending::kNothing);
  attention_.Cache(attention, batch, MtpPages(index, pool));
}

Model::Pending Model::RunLayer(const LayerWeights& layer, const Batch& batch, const KvPages& pages,
                               Pending pending, const NormOf& next) {
  Norm(FirstNorm(layer), batch, pending);
  attention_.Run(layer.attention, batch, pages);
  const NormOf second = {layer.mlp_norm, layer.mlp ? layer.mlp->gate_up.weight.get() : nullptr};
  if (layer.moe && !tensor_parallel() && !exchange_) {
    RunMoe(run_, config_, *layer.moe, batch, activations_,
           {.before = NormArgs(second, batch, Pending::kBranch),
            .behind = NormArgs(next, batch, Pending::kBranch)});
    return Pending::kNormed;
  }
  Norm(second, batch, Pending::kBranch);
  if (layer.moe) {
    RunMoe(run_, config_, *layer.moe, batch, activations_,
           {.exchange = exchange_ ? &*exchange_ : nullptr});
  } else {
    RunMlp(run_, *layer.mlp, batch, activations_);
  }
  return Pending::kBranch;
}

Model::Pending Model::Embed(const Batch& batch) {
  const Share ids = options_.shard.Of(config_.vocab_size);
  run_(run_.ops().embed,
       {.ids = batch.ids,
        .table = weights_.embedding.view,
        .live = batch.map.live,
        .out = First(tensor_parallel() ? activations_.branch : activations_.x, batch.tokens),
        .first = ids.begin,
        .vocab = config_.vocab_size});
  return tensor_parallel() ? Pending::kEmbeddings : Pending::kNothing;
}

RmsNormArgs Model::NormArgs(const NormOf& norm, const Batch& batch, Pending pending) const {
  const Activations& a = activations_;
  const TensorView x = First(a.x, batch.tokens);
  const bool add = pending != Pending::kNothing;
  return {.x = add ? First(a.branch, batch.tokens) : x,
          .residual = add ? x : TensorView(),
          .weight = norm.weight.view,
          .eps = config_.rms_norm_eps,
          .live = batch.map.live,
          .out = First(a.normed, batch.tokens),
          .quantized = First(run_.ops(), a.normed_quantized, batch.tokens, norm.reader)};
}

void Model::Norm(const NormOf& norm, const Batch& batch, Pending pending, const TensorView& out) {
  if (pending == Pending::kNormed) return;
  RmsNormArgs args = NormArgs(norm, batch, pending);
  if (!out.absent()) args.out = out;
  if (pending != Pending::kNothing && tensor_parallel()) {
    run_(run_.ops().all_reduce_norm, {.norm = args,
                                      .begins = pending == Pending::kEmbeddings,
                                      // The next stage norms all of it.
                                      .whole = options_.shard.groups.after != nullptr,
                                      .ranks = options_.shard.groups.tensor});
  } else {
    run_(run_.ops().rms_norm, args);
  }
}

void Model::Logits(const TensorView& hidden, const TensorView& live, const TensorView& logits) {
  const TensorView mine = tensor_parallel() ? First(logits_part_.view, logits.dim(0)) : logits;
  run_(run_.ops().linear,
       {.x = hidden, .weight = weights_.lm_head.weight.get(), .live = live, .out = mine});
  if (!tensor_parallel()) return;
  run_(run_.ops().all_gather, {.x = mine,
                               .live = live,
                               .out = logits,
                               .unit = ShareUnit(config_.vocab_size, options_.shard.layout.tensor),
                               .ranks = options_.shard.groups.tensor});
}

// Walks the widest batches once, without running anything: one that is all absorbed, and one that
// is all expanded, of as many rows as fill a chunk of context.
void Model::MeasureWorkspace(Device& device) {
  const int64_t tokens = options_.max_tokens;
  const TensorView one(nullptr, DType::kI32, {1});
  const TensorView per_token(nullptr, DType::kI32, {tokens});
  const int64_t max_pages = (options_.max_model_len + kPageTokens - 1) / kPageTokens;
  const TensorView page_table(nullptr, DType::kI32, {options_.max_rows, max_pages});
  Batch batch{.tokens = tokens,
              .step_tokens = tokens,
              .ids = per_token,
              .map = {per_token, per_token, page_table, one},
              .absorbed_live = one,
              .absorbed_rows = options_.max_rows};
  const KvPool pool(kv_format(), cached_layers(), /*pages=*/1, device);
  for (bool expanded : {false, true}) {
    if (expanded) {
      batch.expanded_tokens = tokens;
      const int64_t rows = std::min(tokens, options_.max_rows);
      int64_t left = run_.ops().context_chunk;
      for (int64_t row = 0; row < rows && left > 0; ++row) {
        const int64_t context = std::min(left, options_.max_model_len);
        batch.expanded.push_back({row, 1, context - 1, SlotId{static_cast<int32_t>(row)}});
        left -= context;
      }
    }
    const TensorView hidden = Forward(batch, pool);
    HandOn(batch);
    for (size_t i = 0; i < weights_.mtp.size(); ++i) {
      ForwardMtp(static_cast<int>(i), batch, hidden, pool);
    }
  }
  if (!options_.shard.last_stage()) return;
  const int64_t vectors = options_.max_logit_vectors;
  Logits(TensorView(nullptr, activations_.normed.dtype(), {vectors, config_.hidden_size}), one,
         TensorView(nullptr, DType::kF32, {vectors, config_.vocab_size}));
}

}  // namespace fathom
