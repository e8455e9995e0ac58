#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace fathom {
namespace {

constexpr const char* kMlpParts[] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};

// Walks the checkpoint in the schema's names.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const Ops& ops, Device& device, const Shard& shard,
         const LoadProgress& progress, const ReadWindow::Reader& reader)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        ops_(ops),
        device_(device),
        shard_(shard),
        progress_(progress),
        reader_(reader) {}

  Result<ModelWeights> Load() {
    ModelWeights model;
    const Share layers = LayersOf(config_, shard_, SizesIn(checkpoint_));
    model.first_layer = static_cast<int>(layers.begin);
    TRY(reader_.Wait());
    if (HasEmbedding(config_, shard_)) {
      TRY(CheckCopies("embed_tokens.weight", "model.embed_tokens.weight"));
      model.embedding = Table("model.embed_tokens.weight");
    }
    for (auto i = model.first_layer; i < layers.end; ++i) model.layers.push_back(TRY(Layer(i)));
    if (shard_.last_stage()) TRY(AfterLayers(model));
    model.bytes = bytes_;
    // MTP layers that are left out, and other stages' layers, are not read.
    if (progress_) progress_(checkpoint_.total_bytes(), checkpoint_.total_bytes());
    return model;
  }

 private:
  Status AfterLayers(ModelWeights& model) {
    TRY(reader_.Wait());
    model.final_norm = Floats("model.norm.weight");
    TRY(CheckCopies("shared_head.head.weight", "lm_head.weight"));
    const bool tied = config_.tie_word_embeddings && !checkpoint_.Has("lm_head.weight");
    model.lm_head = TRY(Matrix({tied ? "model.embed_tokens.weight" : "lm_head.weight"}));
    for (int i = 0; i < config_.num_mtp_layers; ++i) {
      model.mtp.push_back(TRY(Mtp(config_.num_layers + i)));
    }
    return {};
  }

  Result<LayerWeights> Layer(int index) {
    TRY(reader_.Wait());
    const std::string name = fmt::format("model.layers.{}.", index);
    LayerWeights layer;
    layer.attention_norm = Floats(name + "input_layernorm.weight");
    layer.attention = TRY(Attention(name + "self_attn."));
    layer.mlp_norm = Floats(name + "post_attention_layernorm.weight");
    if (config_.IsMoeLayer(index)) {
      layer.moe = TRY(Moe(name + "mlp."));
    } else {
      layer.mlp = TRY(Mlp(name + "mlp."));
    }
    return layer;
  }

  Result<MtpWeights> Mtp(int index) {
    const std::string name = fmt::format("model.layers.{}.", index);
    MtpWeights mtp;
    mtp.embedding_norm = Floats(name + "enorm.weight");
    mtp.hidden_norm = Floats(name + "hnorm.weight");
    mtp.eh_proj = TRY(Matrix({name + "eh_proj.weight"}));
    mtp.layer = TRY(Layer(index));
    mtp.head_norm = Floats(name + "shared_head.norm.weight");
    return mtp;
  }

  // MTP layers' own copies of a table must be the main model's, which is used in their place. Each
  // rank compares its part, before it reads the main model's: after that it may be gone from
  // memory.
  Status CheckCopies(const char* copy, const std::string& main) {
    if (!shard_.last_stage() || !checkpoint_.Has(main)) return {};
    for (int i = 0; i < config_.num_mtp_layers; ++i) {
      const std::string name = fmt::format("model.layers.{}.{}", config_.num_layers + i, copy);
      if (!checkpoint_.Has(name)) continue;
      const TensorView a = Part(name).values, b = Part(main).values;
      const size_t bytes = static_cast<size_t>(a.elements()) * ByteSize(a.dtype());
      if (a.dtype() != b.dtype() || std::memcmp(a.data(), b.data(), bytes) != 0) {
        return Unimplemented("{} differs from {}: MTP layers share the main model's", name, main);
      }
      Done(name);
    }
    return {};
  }

  Result<AttentionWeights> Attention(const std::string& name) {
    AttentionWeights attention;
    const bool low_rank = config_.q_lora_rank > 0;
    attention.q_kv_a = TRY(Matrix({name + (low_rank ? "q_a_proj.weight" : "q_proj.weight"),
                                   name + "kv_a_proj_with_mqa.weight"}));
    if (low_rank) {
      attention.q_a_norm = Floats(name + "q_a_layernorm.weight");
      attention.q_b = TRY(Matrix({name + "q_b_proj.weight"}));
    }
    attention.kv_a_norm = Floats(name + "kv_a_layernorm.weight");
    TRY(KvB(name + "kv_b_proj.weight", attention));
    attention.o = TRY(Matrix({name + "o_proj.weight"}));
    return attention;
  }

  // kv_b_proj holds W_UK and W_UV of each head, one after the other: [heads, nope + vdim, latent].
  Status KvB(const std::string& name, AttentionWeights& attention) {
    const WeightTensor kv_b = Part(name);
    const int64_t nope = config_.qk_nope_head_dim, vdim = config_.v_head_dim;
    std::vector<WeightSource> uk, uv;
    for (int64_t head = 0; head < kv_b.values.dim(0) / (nope + vdim); ++head) {
      const int64_t begin = head * (nope + vdim);
      uk.push_back({{Transposed(SliceOutputs(kv_b, begin, begin + nope))}});
      uv.push_back({{SliceOutputs(kv_b, begin + nope, begin + nope + vdim)}});
    }
    attention.w_uk = TRY(Pack(name, uk, /*exact_activations=*/true));
    attention.w_uv = TRY(Pack(name, uv, /*exact_activations=*/true));
    attention.kv_b = TRY(Matrix({name}));
    return {};
  }

  Result<MlpWeights> Mlp(const std::string& name) {
    MlpWeights mlp;
    mlp.gate_up = TRY(Matrix({name + "gate_proj.weight", name + "up_proj.weight"}));
    mlp.down = TRY(Matrix({name + "down_proj.weight"}));
    return mlp;
  }

  // With expert parallelism a rank has some routed experts, and all shared ones, whole; else a part
  // of each.
  Result<MoeWeights> Moe(const std::string& name) {
    const Share mine = shard_.Experts(config_.n_routed_experts);
    const auto cut = [&](const WeightTensor& tensor, ShardAxis axis) {
      return PartOfExpert(tensor, axis, shard_);
    };
    MoeWeights moe;
    moe.gate = Router(name + "gate.weight");
    if (config_.router.selection == RouterConfig::kGroupTopTwoBiased) {
      moe.bias = Floats(name + "gate.e_score_correction_bias");
    }
    std::vector<std::string> names;
    std::vector<WeightSource> gate_up, down;
    for (int e = 0; e < config_.n_routed_experts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", name, e);
      for (const char* part : kMlpParts) names.push_back(expert + part);
      if (e < mine.begin || e >= mine.end) continue;
      const auto of = [&](const char* part, ShardAxis axis) {
        return cut(checkpoint_.Get(expert + part), axis);
      };
      gate_up.push_back({{of("gate_proj.weight", ShardAxis::kOutputs),
                          of("up_proj.weight", ShardAxis::kOutputs)}});
      down.push_back({{of("down_proj.weight", ShardAxis::kChannels)}});
    }
    if (config_.n_shared_experts > 0) {
      // The checkpoint has them as one MLP, side by side; each is cut like the routed ones.
      const std::string shared = name + "shared_experts.";
      const int64_t inter = config_.moe_intermediate_size;
      for (int64_t begin = 0; begin < config_.n_shared_experts * inter; begin += inter) {
        const auto outputs = [&](const char* part) {
          return cut(SliceOutputs(checkpoint_.Get(shared + part), begin, begin + inter),
                     ShardAxis::kOutputs);
        };
        gate_up.push_back({{outputs("gate_proj.weight"), outputs("up_proj.weight")}});
        const WeightTensor all = checkpoint_.Get(shared + "down_proj.weight");
        down.push_back({{cut(SliceChannels(all, begin, begin + inter), ShardAxis::kChannels)}});
      }
      for (const char* part : kMlpParts) names.push_back(shared + part);
    }
    moe.gate_up = TRY(Pack(name, gate_up, /*exact_activations=*/false));
    moe.down = TRY(Pack(name, down, /*exact_activations=*/false));
    for (const std::string& read : names) Done(read);
    return moe;
  }

  WeightTensor Cut(const WeightTensor& whole, ShardAxis axis) const {
    return PartOf(whole, axis, config_, shard_);
  }
  // What of a tensor is this rank's.
  WeightTensor Part(const std::string& name) const {
    return Cut(checkpoint_.Get(name), RuleOf(name).axis);
  }

  // One matrix whose parts follow each other along the output dimension.
  Result<Linear> Matrix(const std::vector<std::string>& names) {
    WeightSource source;
    for (const std::string& name : names) source.parts.push_back(Part(name));
    Linear linear = TRY(Pack(names[0], {&source, 1}, /*exact_activations=*/false));
    for (const std::string& name : names) Done(name);
    return linear;
  }

  Result<Linear> Pack(const std::string& name, std::span<const WeightSource> matrices,
                      bool exact_activations) {
    auto packed = ops_.pack(device_.stream(), {.matrices = matrices,
                                               .exact_activations = exact_activations,
                                               .scale_ue8m0 = config_.scale_ue8m0});
    if (!packed.ok()) return packed.status().WithContext(name);
    Linear linear{*std::move(packed)};
    bytes_ += linear.weight->bytes;
    return linear;
  }

  // A vector or a small matrix as fp32.
  PlainTensor Floats(const std::string& name) {
    const TensorView values = checkpoint_.Get(name).values;
    const bool vector = values.rank() == 1;
    const TensorView matrix = vector ? values.Reshaped({1, values.dim(0)}) : values;
    std::vector<float> floats(static_cast<size_t>(matrix.elements()));
    for (int64_t i = 0; i < matrix.dim(0); ++i) {
      for (int64_t j = 0; j < matrix.dim(1); ++j)
        floats[i * matrix.dim(1) + j] = LoadFloat(matrix, i, j);
    }
    PlainTensor tensor;
    tensor.memory = device_.Allocate(floats.size() * sizeof(float));
    tensor.view =
        vector ? TensorView(tensor.memory->data(), DType::kF32, {matrix.dim(1)})
               : TensorView(tensor.memory->data(), DType::kF32, {matrix.dim(0), matrix.dim(1)});
    device_.Upload(tensor.view, std::as_bytes(std::span(floats)));
    bytes_ += tensor.memory->size();
    Done(name);
    return tensor;
  }

  PlainTensor Router(const std::string& name) {
    const bool kept =
        ops_.activation == DType::kBF16 && checkpoint_.Get(name).values.dtype() == DType::kBF16;
    return kept ? Table(name) : Floats(name);
  }

  // A matrix as it is stored.
  PlainTensor Table(const std::string& name) {
    const TensorView values = Part(name).values;
    const size_t bytes = static_cast<size_t>(values.elements()) * ByteSize(values.dtype());
    PlainTensor tensor;
    tensor.memory = device_.Allocate(bytes);
    tensor.view = TensorView(tensor.memory->data(), values.dtype(), {values.dim(0), values.dim(1)});
    device_.Upload(tensor.view, {static_cast<const std::byte*>(values.data()), bytes});
    bytes_ += bytes;
    Done(name);
    return tensor;
  }

  void Done(const std::string& name) {
    const uint64_t bytes = checkpoint_.Bytes(name);
    const bool last = reader_.Pass(bytes);
    // A tied embedding is read twice, and that of several stages by the first and the last.
    done_ = std::min(done_ + bytes, checkpoint_.total_bytes());
    const bool again = name == "model.embed_tokens.weight" &&
                       (shard_.layout.pipeline > 1 || config_.tie_word_embeddings);
    if (last && !again) checkpoint_.Drop(name);
    if (progress_) progress_(done_, checkpoint_.total_bytes());
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const Ops& ops_;
  Device& device_;
  const Shard& shard_;
  const LoadProgress& progress_;
  const ReadWindow::Reader& reader_;
  uint64_t done_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

TensorSizes SizesIn(const Checkpoint& checkpoint) {
  return TensorSizesOf(checkpoint.config(), [&](const SchemaEntry& entry) -> uint64_t {
    return checkpoint.Has(entry.name) ? checkpoint.Bytes(entry.name) : 0;
  });
}

Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const Ops& ops, Device& device,
                                 const Shard& shard, const LoadProgress& progress,
                                 const ReadWindow::Reader& reader) {
  return Loader(checkpoint, ops, device, shard, progress, reader).Load();
}

}  // namespace fathom
