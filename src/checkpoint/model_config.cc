#include "checkpoint/model_config.h"

#include <algorithm>
#include <string>

#include "checkpoint/json.h"

// The meaning of fields is that of the configuration_deepseek.py files published with DeepSeek-V2
// and DeepSeek-V3, and so are the defaults of fields that may be missing. Sizes have no default
// here: a file without them is refused, except where none is a meaning (q_lora_rank,
// n_routed_experts, n_shared_experts).
namespace fathom {
namespace {

constexpr int32_t kMaxExperts = 1 << 18;  // over all layers

void ReadDimensions(Fields& fields, ModelConfig& c, Problems& problems) {
  c.vocab_size = fields.Int("vocab_size", 1, 1 << 24);
  c.hidden_size = fields.Int("hidden_size", 1, 1 << 20);
  c.intermediate_size = fields.Int("intermediate_size", 1, 1 << 20);
  c.num_layers = fields.Int("num_hidden_layers", 1, 1024);
  c.num_mtp_layers = fields.Int("num_nextn_predict_layers", 0, 16, 0);
  c.num_heads = fields.Int("num_attention_heads", 1, 4096);
  c.q_lora_rank = fields.Int("q_lora_rank", 1, 1 << 16, 0);  // null: plain q_proj
  c.kv_lora_rank = fields.Int("kv_lora_rank", 1, 1 << 16);
  c.qk_nope_head_dim = fields.Int("qk_nope_head_dim", 1, 4096);
  c.qk_rope_head_dim = fields.Int("qk_rope_head_dim", 2, 4096);
  c.v_head_dim = fields.Int("v_head_dim", 1, 4096);
  c.max_position_embeddings = fields.Int("max_position_embeddings", 1, 1 << 22);
  if (c.qk_rope_head_dim % 2 != 0) {
    problems.Add("qk_rope_head_dim is {}: rotary pairs need an even number", c.qk_rope_head_dim);
  }
  const int32_t kv_heads = fields.Int("num_key_value_heads", 1, 4096, c.num_heads);
  if (kv_heads != c.num_heads) {
    problems.Add("num_key_value_heads is {}: it must equal num_attention_heads ({})", kv_heads,
                 c.num_heads);
  }
}

void ReadExperts(Fields& fields, ModelConfig& c, Problems& problems) {
  c.n_routed_experts = fields.Int("n_routed_experts", 1, 4096, 0);  // null: dense
  if (c.n_routed_experts == 0) return;
  c.moe_intermediate_size = fields.Int("moe_intermediate_size", 1, 1 << 20);
  c.n_shared_experts = fields.Int("n_shared_experts", 0, 64, 0);
  c.num_experts_per_tok = fields.Int("num_experts_per_tok", 1, 4096);
  c.first_k_dense_replace = fields.Int("first_k_dense_replace", 0, 1024);
  c.moe_layer_freq = fields.Int("moe_layer_freq", 1, 1024, 1);
  if (c.num_experts_per_tok > c.n_routed_experts) {
    problems.Add("num_experts_per_tok ({}) is more than n_routed_experts ({})",
                 c.num_experts_per_tok, c.n_routed_experts);
  }
  if (c.total_layers() * c.n_routed_experts > kMaxExperts) {
    problems.Add("{} layers of {} experts are more than fathom reads ({} experts in all)",
                 c.total_layers(), c.n_routed_experts, kMaxExperts);
  }
}

// n_group and topk_group, for the selections that use groups.
void ReadGroups(Fields& fields, ModelConfig& c, Problems& problems) {
  RouterConfig& router = c.router;
  router.n_group = fields.Int("n_group", 1, 4096);
  router.topk_group = fields.Int("topk_group", 1, 4096);
  if (c.n_routed_experts % router.n_group != 0) {
    problems.Add("n_group ({}) does not divide n_routed_experts ({})", router.n_group,
                 c.n_routed_experts);
    return;
  }
  const int32_t group_size = c.n_routed_experts / router.n_group;
  if (router.topk_group > router.n_group) {
    problems.Add("topk_group ({}) is more than n_group ({})", router.topk_group, router.n_group);
  } else if (router.topk_group * group_size < c.num_experts_per_tok) {
    problems.Add("num_experts_per_tok ({}) is more than the {} experts of topk_group ({}) groups",
                 c.num_experts_per_tok, router.topk_group * group_size, router.topk_group);
  }
  if (router.selection == RouterConfig::kGroupTopTwoBiased && group_size < 2) {
    problems.Add(
        "topk_method noaux_tc scores a group by its best two experts: n_group ({}) leaves "
        "one per group",
        router.n_group);
  }
}

void ReadRouter(Fields& fields, ModelConfig& c, Problems& problems) {
  if (c.n_routed_experts == 0) return;
  const bool v3 = c.model_type == "deepseek_v3";
  const std::string_view scoring = fields.String("scoring_func", v3 ? "sigmoid" : "softmax");
  const std::string_view method = fields.String("topk_method", v3 ? "noaux_tc" : "greedy");
  RouterConfig& router = c.router;
  router.norm_topk_prob = fields.Bool("norm_topk_prob", v3);
  router.routed_scaling_factor = fields.Float("routed_scaling_factor", 1e-6f, 1e6f, v3 ? 2.5f : 1);
  if (scoring == "sigmoid" && method == "noaux_tc") {
    router.scoring = RouterConfig::kSigmoid;
    router.selection = RouterConfig::kGroupTopTwoBiased;
  } else if (scoring == "softmax" && method == "group_limited_greedy") {
    router.selection = RouterConfig::kGroupMax;
  } else if (scoring == "softmax" && (method == "greedy" || method == "gready")) {
    router.selection = RouterConfig::kGreedy;  // "gready" is how the published default is spelt
  } else {
    problems.Add(
        "scoring_func {} with topk_method {} is not supported: fathom knows sigmoid with "
        "noaux_tc, and softmax with greedy or group_limited_greedy",
        Printable(scoring), Printable(method));
    return;
  }
  if (router.scoring == RouterConfig::kSoftmax && router.norm_topk_prob) {
    problems.Add(
        "norm_topk_prob true with scoring_func softmax is not supported: no published "
        "model has it, and implementations disagree on routed_scaling_factor there");
  }
  if (router.selection != RouterConfig::kGreedy) ReadGroups(fields, c, problems);
}

void ReadYarn(Fields& rope, ModelConfig& c, Problems& problems) {
  YarnConfig yarn;
  yarn.factor = rope.Float("factor", 1, 1e6f);
  yarn.original_max_position_embeddings = rope.Int("original_max_position_embeddings", 1, 1 << 26);
  yarn.beta_fast = rope.Float("beta_fast", 1e-3f, 1e6f, 32);
  yarn.beta_slow = rope.Float("beta_slow", 1e-3f, 1e6f, 1);
  yarn.mscale = rope.OptionalFloat("mscale", 0, 1000);
  yarn.mscale_all_dim = rope.OptionalFloat("mscale_all_dim", 0, 1000);
  if (yarn.mscale == 0.0f) yarn.mscale.reset();
  if (yarn.mscale_all_dim == 0.0f) yarn.mscale_all_dim.reset();
  if (yarn.beta_fast < yarn.beta_slow) {
    problems.Add("the rope scaling's beta_fast ({}) is less than its beta_slow ({})",
                 yarn.beta_fast, yarn.beta_slow);
  }
  if (rope.Has("attention_factor")) {
    problems.Add(
        "the rope scaling's attention_factor is not supported: DeepSeek models state "
        "mscale and mscale_all_dim");
  }
  if (!rope.Bool("truncate", true)) {
    problems.Add("the rope scaling's truncate false is not supported");
  }
  c.yarn = yarn;
}

// `rope_scaling` with `rope_theta` beside it, or `rope_parameters` (transformers 5), which holds
// both.
void ReadRope(Fields& fields, ModelConfig& c, Problems& problems) {
  constexpr float kThetaLow = 1.001f, kThetaHigh = 1e12f;
  const std::optional<float> theta = fields.OptionalFloat("rope_theta", kThetaLow, kThetaHigh);
  c.rope_theta = theta.value_or(10000.0f);
  if (!fields.Bool("rope_interleave", true)) {
    problems.Add(
        "rope_interleave false is not supported: DeepSeek models rotate interleaved pairs");
  }
  if (fields.Has("rope_scaling") && fields.Has("rope_parameters")) {
    problems.Add("rope_scaling and rope_parameters are both given: remove one");
    return;
  }
  const std::string_view key = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const boost::json::object* object = fields.Object(key);
  if (object == nullptr) return;
  const std::string prefix = std::string(key) + ".";
  Fields rope(*object, prefix, problems);
  const std::optional<float> inner = rope.OptionalFloat("rope_theta", kThetaLow, kThetaHigh);
  if (theta.has_value() && inner.has_value() && theta != inner) {
    problems.Add("rope_theta is {}, but {}rope_theta is {}", *theta, prefix, *inner);
  }
  c.rope_theta = inner.value_or(c.rope_theta);
  const std::string_view type = rope.String("rope_type", rope.String("type", ""));
  if (type != rope.String("type", type)) {
    problems.Add("{}rope_type is {}, but {}type is {}", prefix, Printable(type), prefix,
                 Printable(rope.String("type", "")));
  } else if (type == "yarn") {
    ReadYarn(rope, c, problems);
  } else if (type != "default") {
    problems.Add("{}rope_type \"{}\" is not supported: fathom knows yarn and default", prefix,
                 Printable(type));
  }
}

void ReadQuantization(Fields& fields, ModelConfig& c, Problems& problems) {
  const boost::json::object* object = fields.Object("quantization_config");
  if (object == nullptr) return;
  Fields quant(*object, "quantization_config.", problems);
  const std::string_view method = quant.String("quant_method", "");
  if (method != "fp8") {
    problems.Add(
        "quantization_config.quant_method \"{}\" is not supported: use a checkpoint in "
        "BF16, F16, F32 or DeepSeek's fp8",
        Printable(method));
    return;
  }
  c.fp8 = true;
  const auto expect = [&](std::string_view key, std::string_view fallback, std::string_view only) {
    const std::string_view value = quant.String(key, fallback);
    if (value == only) return;
    problems.Add("quantization_config.{} \"{}\" is not supported: fathom knows \"{}\"", key,
                 Printable(value), only);
  };
  expect("fmt", "e4m3", "e4m3");
  expect("activation_scheme", "dynamic", "dynamic");
  if (quant.Has("scale_fmt")) {
    expect("scale_fmt", "", "ue8m0");
    c.scale_ue8m0 = true;
  }
  const boost::json::value* block = quant.Find("weight_block_size");
  if (block == nullptr || *block != boost::json::array{128, 128}) {
    problems.Add("quantization_config.weight_block_size must be [128, 128]");
  }
}

// What every model must agree with, whatever its sizes.
void ReadArchitecture(Fields& fields, Problems& problems) {
  if (const boost::json::value* list = fields.Find("architectures")) {
    const auto known = [](const boost::json::value& name) {
      return name == "DeepseekV2ForCausalLM" || name == "DeepseekV3ForCausalLM";
    };
    const boost::json::array* names = list->if_array();
    if (names == nullptr || !std::any_of(names->begin(), names->end(), known)) {
      problems.Add("architectures must name DeepseekV2ForCausalLM or DeepseekV3ForCausalLM");
    }
  }
  if (fields.Bool("attention_bias", false)) {
    problems.Add("attention_bias true is not supported: DeepSeek models have no attention biases");
  }
  const std::string_view activation = fields.String("hidden_act", "silu");
  if (activation != "silu") {
    problems.Add("hidden_act \"{}\" is not supported: fathom knows silu", Printable(activation));
  }
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view json) {
  const boost::json::object object = TRY(ParseJsonObject("config.json", json));
  Problems problems;
  Fields fields(object, "", problems);
  ModelConfig c;
  c.model_type = fields.String("model_type", "");
  if (c.model_type != "deepseek_v2" && c.model_type != "deepseek_v3") {
    return Unimplemented(
        "config.json: model_type \"{}\" is not supported: fathom runs DeepSeek models of "
        "model_type "
        "deepseek_v2 (V2, V2-Lite, Coder-V2) and deepseek_v3 (V3, R1, V3.1)",
        Printable(c.model_type));
  }
  ReadArchitecture(fields, problems);
  ReadDimensions(fields, c, problems);
  ReadExperts(fields, c, problems);
  ReadRouter(fields, c, problems);
  ReadRope(fields, c, problems);
  ReadQuantization(fields, c, problems);
  c.rms_norm_eps = fields.Float("rms_norm_eps", 1e-12f, 1, 1e-6f);
  c.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  const std::vector<TokenId> bos = fields.Tokens("bos_token_id", c.vocab_size);
  if (!bos.empty()) c.bos = bos.front();
  c.eos = fields.Tokens("eos_token_id", c.vocab_size);
  if (!problems.empty()) return problems.ToStatus("config.json");
  return c;
}

}  // namespace fathom
