#include "checkpoint/presets.h"

namespace fathom {
namespace {

// https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite
constexpr std::string_view kV2Lite = R"({
  "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048,
  "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
  "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2,
  "n_routed_experts": 64, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1,
  "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": false,
  "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
  "max_position_embeddings": 163840, "attention_bias": false, "tie_word_embeddings": false,
  "bos_token_id": 100000, "eos_token_id": 100001})";

// https://huggingface.co/deepseek-ai/DeepSeek-V2
constexpr std::string_view kV2 = R"({
  "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 5120,
  "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 60,
  "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 2,
  "n_routed_experts": 160, "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3,
  "topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": false,
  "routed_scaling_factor": 16.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
  "max_position_embeddings": 163840, "attention_bias": false, "tie_word_embeddings": false,
  "bos_token_id": 100000, "eos_token_id": 100001})";

// https://huggingface.co/deepseek-ai/DeepSeek-V3
constexpr std::string_view kV3 = R"({
  "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
  "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
  "num_nextn_predict_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
  "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8,
  "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true,
  "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
  "max_position_embeddings": 163840, "attention_bias": false, "tie_word_embeddings": false,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128]},
  "bos_token_id": 0, "eos_token_id": 1})";

}  // namespace

Result<ModelConfig> PresetConfig(std::string_view name) {
  if (name == "v2-lite") return ParseModelConfig(kV2Lite);
  if (name == "v2-lite-mtp") {
    ModelConfig config = TRY(ParseModelConfig(kV2Lite));
    config.num_mtp_layers = 1;
    return config;
  }
  if (name == "v2") return ParseModelConfig(kV2);
  if (name == "v3") return ParseModelConfig(kV3);
  return InvalidArgument("no preset {}: there are {}", name, kPresetNames);
}

}  // namespace fathom
