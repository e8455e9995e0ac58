// config.json of a DeepSeek checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace fathom {

// How tokens choose experts. Published combinations: V2-Lite softmax + greedy, V2 softmax + group
// max, V3 sigmoid + the sum of a group's best two biased scores (biased by
// e_score_correction_bias).
struct RouterConfig {
  enum Scoring { kSoftmax, kSigmoid };
  enum Selection { kGreedy, kGroupMax, kGroupTopTwoBiased };
  Scoring scoring = kSoftmax;
  Selection selection = kGreedy;
  int32_t n_group = 1;
  int32_t topk_group = 1;
  bool norm_topk_prob = false;
  float routed_scaling_factor = 1.0f;
};

// YaRN (Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023).
struct YarnConfig {
  float factor = 1.0f;
  int32_t original_max_position_embeddings = 0;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  std::optional<float> mscale;  // zero in the file counts as absent, as in the published code
  std::optional<float> mscale_all_dim;
};

// What a checkpoint's config.json says, validated: every size is positive unless stated, and no
// product of sizes that names a tensor's shape overflows.
struct ModelConfig {
  std::string model_type;  // "deepseek_v2" or "deepseek_v3"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t moe_intermediate_size = 0;  // 0 for a dense model
  int32_t num_layers = 0;
  int32_t num_mtp_layers = 0;  // num_nextn_predict_layers; their tensors are layers num_layers, ...
  int32_t num_heads = 0;
  int32_t q_lora_rank = 0;  // 0: plain q_proj
  int32_t kv_lora_rank = 0;
  int32_t qk_nope_head_dim = 0;
  int32_t qk_rope_head_dim = 0;
  int32_t v_head_dim = 0;
  int32_t n_routed_experts = 0;  // 0: every layer is dense
  int32_t n_shared_experts = 0;  // one MLP of n_shared_experts * moe_intermediate_size; may be 0
  int32_t num_experts_per_tok = 0;
  int32_t first_k_dense_replace = 0;
  int32_t moe_layer_freq = 1;
  RouterConfig router;
  float rope_theta = 10000.0f;
  std::optional<YarnConfig> yarn;
  float rms_norm_eps = 1e-6f;
  int32_t max_position_embeddings = 0;
  bool fp8 = false;          // weights may be F8_E4M3 with 128x128 scales
  bool scale_ue8m0 = false;  // where activations are quantised, their scales are powers of two
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;  // may be empty
  bool tie_word_embeddings = false;

  // Whether layer `layer` (MTP layers count on from num_layers) has experts.
  bool IsMoeLayer(int layer) const {
    return n_routed_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  int32_t total_layers() const { return num_layers + num_mtp_layers; }
  int32_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Values of the latent KV cache per token and layer.
  int32_t latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
};

// Refuses what fathom cannot run by the field's name, saying what is supported.
Result<ModelConfig> ParseModelConfig(std::string_view json);

}  // namespace fathom
