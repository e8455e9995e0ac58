#include "checkpoint/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "quant/weight_format.h"

namespace fathom {
namespace {

using Config = ModelConfig;
constexpr auto kPlainQ = [](const Config& c) { return c.q_lora_rank == 0; };
constexpr auto kLowRankQ = [](const Config& c) { return c.q_lora_rank > 0; };
constexpr auto kShared = [](const Config& c) { return c.n_shared_experts > 0; };
constexpr auto kBiased = [](const Config& c) {
  return c.router.selection == RouterConfig::kGroupTopTwoBiased;
};
constexpr auto kTied = [](const Config& c) { return c.tie_word_embeddings; };
constexpr auto kAlways = [](const Config&) { return true; };

// Names and shapes: those of the checkpoints published by DeepSeek.
using R = TensorRule;
using D = Dim;
using A = ShardAxis;
// clang-format off
constexpr TensorRule kRules[] = {
    {"model.embed_tokens.weight", R::kModel, R::kMatrix, {D::kVocab, D::kHidden}, A::kVocab},
    {"model.norm.weight", R::kModel, R::kVector, {D::kHidden}, A::kNone},
    {"lm_head.weight", R::kModel, R::kMatrix, {D::kVocab, D::kHidden}, A::kVocab, nullptr, kTied},

    {"model.layers.{layer}.input_layernorm.weight", R::kEveryLayer, R::kVector, {D::kHidden}, A::kNone},
    {"model.layers.{layer}.post_attention_layernorm.weight", R::kEveryLayer, R::kVector, {D::kHidden}, A::kNone},
    {"model.layers.{layer}.self_attn.q_proj.weight", R::kEveryLayer, R::kLinear, {D::kQHeads, D::kHidden}, A::kHeadOutputs, kPlainQ},
    {"model.layers.{layer}.self_attn.q_a_proj.weight", R::kEveryLayer, R::kLinear, {D::kQLora, D::kHidden}, A::kNone, kLowRankQ},
    {"model.layers.{layer}.self_attn.q_a_layernorm.weight", R::kEveryLayer, R::kVector, {D::kQLora}, A::kNone, kLowRankQ},
    {"model.layers.{layer}.self_attn.q_b_proj.weight", R::kEveryLayer, R::kLinear, {D::kQHeads, D::kQLora}, A::kHeadOutputs, kLowRankQ},
    {"model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", R::kEveryLayer, R::kLinear, {D::kLatentRope, D::kHidden}, A::kNone},
    {"model.layers.{layer}.self_attn.kv_a_layernorm.weight", R::kEveryLayer, R::kVector, {D::kLatent}, A::kNone},
    {"model.layers.{layer}.self_attn.kv_b_proj.weight", R::kEveryLayer, R::kLinear, {D::kKvHeads, D::kLatent}, A::kHeadOutputs},
    {"model.layers.{layer}.self_attn.o_proj.weight", R::kEveryLayer, R::kLinear, {D::kHidden, D::kVHeads}, A::kHeadChannels},

    {"model.layers.{layer}.mlp.gate_proj.weight", R::kDenseLayer, R::kLinear, {D::kInter, D::kHidden}, A::kOutputs},
    {"model.layers.{layer}.mlp.up_proj.weight", R::kDenseLayer, R::kLinear, {D::kInter, D::kHidden}, A::kOutputs},
    {"model.layers.{layer}.mlp.down_proj.weight", R::kDenseLayer, R::kLinear, {D::kHidden, D::kInter}, A::kChannels},

    {"model.layers.{layer}.mlp.gate.weight", R::kMoeLayer, R::kMatrix, {D::kExperts, D::kHidden}, A::kNone},
    {"model.layers.{layer}.mlp.gate.e_score_correction_bias", R::kMoeLayer, R::kVector, {D::kExperts}, A::kNone, kBiased},
    {"model.layers.{layer}.mlp.shared_experts.gate_proj.weight", R::kMoeLayer, R::kLinear, {D::kSharedInter, D::kHidden}, A::kOutputs, kShared},
    {"model.layers.{layer}.mlp.shared_experts.up_proj.weight", R::kMoeLayer, R::kLinear, {D::kSharedInter, D::kHidden}, A::kOutputs, kShared},
    {"model.layers.{layer}.mlp.shared_experts.down_proj.weight", R::kMoeLayer, R::kLinear, {D::kHidden, D::kSharedInter}, A::kChannels, kShared},
    {"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", R::kMoeLayer, R::kLinear, {D::kMoeInter, D::kHidden}, A::kOutputs},
    {"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", R::kMoeLayer, R::kLinear, {D::kMoeInter, D::kHidden}, A::kOutputs},
    {"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", R::kMoeLayer, R::kLinear, {D::kHidden, D::kMoeInter}, A::kChannels},

    // An MTP layer is a block of its own with these around it; embedding and head repeat the main
    // ones, so that many checkpoints leave them out.
    {"model.layers.{layer}.enorm.weight", R::kMtpLayer, R::kVector, {D::kHidden}, A::kNone},
    {"model.layers.{layer}.hnorm.weight", R::kMtpLayer, R::kVector, {D::kHidden}, A::kNone},
    {"model.layers.{layer}.eh_proj.weight", R::kMtpLayer, R::kLinear, {D::kHidden, D::kTwoHidden}, A::kNone},
    {"model.layers.{layer}.shared_head.norm.weight", R::kMtpLayer, R::kVector, {D::kHidden}, A::kNone},
    {"model.layers.{layer}.embed_tokens.weight", R::kMtpLayer, R::kMatrix, {D::kVocab, D::kHidden}, A::kVocab, nullptr, kAlways},
    {"model.layers.{layer}.shared_head.head.weight", R::kMtpLayer, R::kMatrix, {D::kVocab, D::kHidden}, A::kVocab, nullptr, kAlways},
};
// clang-format on

bool InScope(TensorRule::Scope scope, const ModelConfig& config, int layer) {
  switch (scope) {
    case TensorRule::kModel: return false;
    case TensorRule::kEveryLayer: return true;
    case TensorRule::kDenseLayer: return !config.IsMoeLayer(layer);
    case TensorRule::kMoeLayer: return config.IsMoeLayer(layer);
    case TensorRule::kMtpLayer: return layer >= config.num_layers;
  }
  return false;
}

// `pattern` with `mark` replaced by `number`; as it is if it has no such mark.
std::string Fill(std::string_view pattern, std::string_view mark, int number) {
  const size_t at = pattern.find(mark);
  if (at == std::string_view::npos) return std::string(pattern);
  std::string name(pattern.substr(0, at));
  name += std::to_string(number);
  return name += pattern.substr(at + mark.size());
}

void AddLayer(const TensorRule& rule, const ModelConfig& config, int layer,
              std::vector<SchemaEntry>& entries) {
  const std::string name = Fill(rule.pattern, "{layer}", layer);
  if (rule.pattern.find("{expert}") == std::string_view::npos) {
    entries.push_back({name, &rule, layer, -1});
    return;
  }
  for (int expert = 0; expert < config.n_routed_experts; ++expert) {
    entries.push_back({Fill(name, "{expert}", expert), &rule, layer, expert});
  }
}

}  // namespace

int64_t Size(Dim dim, const ModelConfig& c) {
  const int64_t hidden = c.hidden_size, moe_inter = c.moe_intermediate_size, heads = c.num_heads;
  switch (dim) {
    case Dim::kNone: break;
    case Dim::kVocab: return c.vocab_size;
    case Dim::kHidden: return hidden;
    case Dim::kTwoHidden: return 2 * hidden;
    case Dim::kInter: return c.intermediate_size;
    case Dim::kMoeInter: return moe_inter;
    case Dim::kSharedInter: return c.n_shared_experts * moe_inter;
    case Dim::kQLora: return c.q_lora_rank;
    case Dim::kQHeads: return heads * c.qk_head_dim();
    case Dim::kLatent: return c.kv_lora_rank;
    case Dim::kLatentRope: return c.latent_dim();
    case Dim::kKvHeads: return heads * (c.qk_nope_head_dim + c.v_head_dim);
    case Dim::kVHeads: return heads * c.v_head_dim;
    case Dim::kExperts: return c.n_routed_experts;
  }
  CHECK(false, "no such dimension");
}

std::string_view Name(Dim dim) {
  switch (dim) {
    case Dim::kNone: return "none";
    case Dim::kVocab: return "vocab_size";
    case Dim::kHidden: return "hidden_size";
    case Dim::kTwoHidden: return "2 * hidden_size";
    case Dim::kInter: return "intermediate_size";
    case Dim::kMoeInter: return "moe_intermediate_size";
    case Dim::kSharedInter: return "n_shared_experts * moe_intermediate_size";
    case Dim::kQLora: return "q_lora_rank";
    case Dim::kQHeads: return "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)";
    case Dim::kLatent: return "kv_lora_rank";
    case Dim::kLatentRope: return "kv_lora_rank + qk_rope_head_dim";
    case Dim::kKvHeads: return "num_attention_heads * (qk_nope_head_dim + v_head_dim)";
    case Dim::kVHeads: return "num_attention_heads * v_head_dim";
    case Dim::kExperts: return "n_routed_experts";
  }
  return "unknown";
}

std::string_view Name(ShardAxis axis) {
  switch (axis) {
    case ShardAxis::kNone: return "none";
    case ShardAxis::kOutputs: return "outputs";
    case ShardAxis::kChannels: return "channels";
    case ShardAxis::kHeadOutputs: return "outputs by head";
    case ShardAxis::kHeadChannels: return "channels by head";
    case ShardAxis::kVocab: return "vocabulary";
  }
  return "unknown";
}

std::vector<int64_t> Shape(const TensorRule& rule, const ModelConfig& config) {
  std::vector<int64_t> shape;
  for (const Dim dim : rule.shape) {
    if (dim != Dim::kNone) shape.push_back(Size(dim, config));
  }
  return shape;
}

std::string DescribeShape(const TensorRule& rule, const ModelConfig& config) {
  std::string names(Name(rule.shape[0]));
  if (rule.shape[1] != Dim::kNone) names += fmt::format(", {}", Name(rule.shape[1]));
  return fmt::format("[{}] ({})", fmt::join(Shape(rule, config), ", "), names);
}

const TensorRule& RuleOf(std::string_view name) {
  // The name as a pattern: the number behind ".layers." and ".experts." for its mark.
  std::string pattern(name);
  for (const auto& [folder, mark] : {std::pair(".layers.", "{layer}"), {".experts.", "{expert}"}}) {
    const size_t found = pattern.find(folder);
    if (found == pattern.npos) continue;
    const size_t begin = found + std::string_view(folder).size();
    const size_t end = std::min(pattern.find('.', begin), pattern.size());
    pattern.replace(begin, end - begin, mark);
  }
  for (const TensorRule& rule : kRules) {
    if (rule.pattern == pattern) return rule;
  }
  CHECK(false, "{} is in no rule of the schema", name);
}

std::vector<SchemaEntry> ExpectedTensors(const ModelConfig& config) {
  std::vector<SchemaEntry> entries;
  for (const TensorRule& rule : kRules) {
    if (rule.wanted != nullptr && !rule.wanted(config)) continue;
    if (rule.scope == TensorRule::kModel) entries.push_back({std::string(rule.pattern), &rule});
    for (int layer = 0; layer < config.total_layers(); ++layer) {
      if (InScope(rule.scope, config, layer)) AddLayer(rule, config, layer, entries);
    }
  }
  return entries;
}

uint64_t PublishedBytes(const SchemaEntry& entry, const ModelConfig& config) {
  const TensorRule& rule = *entry.rule;
  int64_t elements = 1;
  for (const int64_t n : Shape(rule, config)) elements *= n;
  if (config.fp8 && rule.PublishedInFp8()) {
    const ScaleGroups& tiles = WeightFormat::kFp8.scales;
    const std::vector<int64_t> shape = Shape(rule, config);
    const int64_t scales = tiles.outputs.Count(shape[0]) * tiles.channels.Count(shape[1]);
    return static_cast<uint64_t>(elements + int64_t{sizeof(float)} * scales);
  }
  const int64_t width = rule.pattern.ends_with("bias") ? 4 : 2;
  return static_cast<uint64_t>(elements * width);
}

}  // namespace fathom
