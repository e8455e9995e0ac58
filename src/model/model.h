// A DeepSeek model on a device: tokens in, hidden states and logits out.
#pragma once

#include <memory>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "model/activations.h"
#include "model/attention.h"
#include "model/batch.h"
#include "model/expert_exchange.h"
#include "model/kv_pool.h"
#include "model/shard.h"
#include "model/synthetic_routing.h"
#include "model/weights.h"
#include "ops/op_runner.h"

namespace fathom {

struct ModelOptions {
  int64_t max_tokens = 512;          // of a step
  int64_t max_rows = 32;             // of a step
  int64_t max_drafts = 0;            // that a decode verifies
  std::optional<NgramLookup> ngram;  // who proposes them; absent: `mtp` says
  bool mtp = false;                  // the MTP layer does
  double synthetic_acceptance = -1;  // of a benchmark: VerifyDraftsArgs
  int64_t max_logit_vectors = 32;    // of one Logits() call
  int64_t max_model_len = 0;         // positions; 0: the config's
  // Prompts' parts of chunks that are longer take the expanded form (base/attention_form.h):
  // whoever plans steps takes it from here. Negative: AbsorbedLimit().
  int64_t absorbed_limit = -1;
  bool batch_invariant = true;                        // AttendAbsorbedArgs
  std::optional<DType> kv_cache;                      // MakeKvFormat; absent: the table's default
  std::optional<SyntheticRouting> synthetic_routing;  // checked; for benchmarks
  Shard shard;                                        // what of the model this is
};

// kUnimplemented if the model, or the layout, is beyond the table's limits; CheckLayout.
Status CheckLimits(const ModelConfig& config, const Ops& ops, const ParallelLayout& layout);

// THREAD: one at a time.
class Model {
 public:
  // kUnimplemented, before weights are read, if the model is beyond the table's limits;
  // kResourceExhausted if its work space does not fit.
  static Result<std::unique_ptr<Model>> Load(const Checkpoint& checkpoint, const Ops& ops,
                                             Device& device, const ModelOptions& options,
                                             const LoadProgress& progress,
                                             const ReadWindow::Reader& reader = {});

  // What a model takes of a device's memory beside weights, exchange and work space.
  // REQUIRES: options.max_model_len > 0.
  static size_t ActivationBytes(const ModelConfig& config, const Ops& ops,
                                const ModelOptions& options);

  const ModelConfig& config() const { return config_; }     // the whole model's
  const ModelOptions& options() const { return options_; }  // with the defaults filled in
  KvFormat kv_format() const;
  const ModelWeights& weights() const { return weights_; }
  size_t weight_bytes() const { return weights_.bytes; }
  size_t activation_bytes() const {
    return ActivationBytes(config_, run_.ops(), options_) + synthetic_routing_bytes_;
  }
  size_t exchange_bytes() const {
    return PairExchange::Bytes(config_, options_.shard, run_.ops(), options_.max_tokens);
  }
  size_t workspace_bytes() const { return run_.workspace_bytes(); }
  OpRunner& runner() { return run_; }
  // I32 [tokens, topk + shared]: the experts of the last MoE layer that ran, MTP layers aside;
  // absent without experts. Of all groups' tokens where these cut experts between them.
  const TensorView& expert_ids() const;

  // Layers that it has pages of, MTP layers included.
  int64_t cached_layers() const {
    return static_cast<int64_t>(weights_.layers.size() + weights_.mtp.size());
  }

  // One pass over the batch: writes its latents, returns final-normed hidden states
  // [tokens, hidden], valid until the next pass; of a stage that is not the last they mean nothing,
  // nor do those of ForwardMtp. DeepseekV2Model.forward and
  // DeepseekV3Model.forward of transformers.
  TensorView Forward(const Batch& batch, const KvPool& pool);
  // What the last Forward() returned of a batch's first tokens, or a replay of it left there.
  TensorView hidden(int64_t tokens) const;
  // Hands the stage after this one, if there is one, what Forward() has come to of the batch, as
  // the next Forward() there takes it. Before this one's next pass.
  void HandOn(const Batch& batch);

  // MTP layer `index`: from hidden states of positions t (Forward's, or this function's for further
  // drafts) and a batch whose ids are the tokens of t + 1. Returns the shared head's input for
  // token t + 2, valid until the next pass. `hidden` may be what Forward returned.
  // DeepSeek-V3, section 2.2: h'_t = M [norm(h_t); norm(Emb(x_t+1))], then a layer; checkpoints
  // have the embedding's half of M (eh_proj) first. transformers leaves these layers out.
  TensorView ForwardMtp(int index, const Batch& batch, const TensorView& hidden,
                        const KvPool& pool);

  // Writes the latents that ForwardMtp writes, and computes nothing else.
  void CacheMtp(int index, const Batch& batch, const TensorView& hidden, const KvPool& pool);

  // logits [logit vectors, vocab], F32, of hidden states [logit vectors, hidden]: lm_head of
  // DeepseekV3ForCausalLM.forward in transformers. REQUIRES: the last stage.
  void Logits(const TensorView& hidden, const TensorView& live, const TensorView& logits);

 private:
  Model(const Checkpoint& checkpoint, const Ops& ops, Device& device, const ModelOptions& options,
        ModelWeights weights);

  // What waits to be added to a.x in a.branch, of which each rank of a tensor-parallel group has a
  // part: nothing, a layer's branch, or the embeddings that a.x begins with; or it has been added,
  // and a.normed is made of it.
  enum class Pending : uint8_t { kNothing, kBranch, kEmbeddings, kNormed };

  // A norm, and the weight of the product that reads what it makes; null: none does.
  struct NormOf {
    const PlainTensor& weight;
    const PackedWeight* reader = nullptr;
  };

  bool tensor_parallel() const { return options_.shard.groups.tensor != nullptr; }
  // Embeddings of the batch's tokens, in a.x, or waiting.
  Pending Embed(const Batch& batch);

  // What the layer begins with, in a.x.
  void BeginMtp(const MtpWeights& mtp, const Batch& batch, const TensorView& hidden);
  KvPages MtpPages(int index, const KvPool& pool) const {
    return pool.Layer(static_cast<int64_t>(weights_.layers.size()) + index);
  }

  // x += what a layer adds, but for its last branch, which waits. h = x + attention(norm(x)), then
  // h + mlp(norm(h)): DeepseekV2DecoderLayer.forward and DeepseekV3DecoderLayer.forward of
  // transformers. `next`: the norm behind it.
  Pending RunLayer(const LayerWeights& layer, const Batch& batch, const KvPages& pages,
                   Pending pending, const NormOf& next);
  // a.normed = norm(a.x += what waits), unless that is done. x / sqrt(mean(x^2) + eps) * weight
  // (RMSNorm, arXiv:1910.07467): DeepseekV2RMSNorm.forward and DeepseekV3RMSNorm.forward of
  // transformers. `out`: in a.normed's place.
  void Norm(const NormOf& norm, const Batch& batch, Pending pending, const TensorView& out = {});
  RmsNormArgs NormArgs(const NormOf& norm, const Batch& batch, Pending pending) const;
  // What a layer begins with.
  static NormOf FirstNorm(const LayerWeights& layer) {
    return {layer.attention_norm, layer.attention.q_kv_a.weight.get()};
  }
  static Activations::Tokens TokensOf(const ModelConfig& config, const Ops& ops,
                                      const ModelOptions& options);
  // The residual in BF16, where a layer's branch would be: between passes that is free.
  TensorView RoundedResidual(int64_t tokens) const;
  void DrawSyntheticRouting(Device& device);
  void MeasureWorkspace(Device& device);

  ModelConfig config_;
  ModelOptions options_;
  ModelConfig part_;  // ConfigOfRank
  ModelWeights weights_;
  PlainTensor cos_sin_;
  PlainTensor logits_part_;  // F32 [logit vectors, this rank's vocabulary]; absent if it has all
  size_t synthetic_routing_bytes_ = 0;
  Rotary rotary_;
  Activations activations_;
  std::optional<PairExchange> exchange_;  // if tokens travel to their experts
  OpRunner run_;
  Attention attention_;
};

}  // namespace fathom
