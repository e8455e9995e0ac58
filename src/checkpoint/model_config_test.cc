#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include "checkpoint/generation_config.h"
#include "checkpoint/testing.h"

namespace fathom {
namespace {

using testing::SmallConfig;
using Edits = std::vector<std::string>;

ModelConfig Parse(const Edits& edits) {
  Result<ModelConfig> config = ParseModelConfig(SmallConfig(edits));
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : ModelConfig{};
}

std::string Error(const Edits& edits) {
  const Result<ModelConfig> config = ParseModelConfig(SmallConfig(edits));
  return config.ok() ? "no error" : config.status().message();
}

TEST(ModelConfig, ReadsEveryField) {
  const ModelConfig c = Parse({});
  EXPECT_EQ(c.model_type, "deepseek_v3");
  EXPECT_EQ(c.vocab_size, 20);
  EXPECT_EQ(c.hidden_size, 160);
  EXPECT_EQ(c.intermediate_size, 136);
  EXPECT_EQ(c.moe_intermediate_size, 24);
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.num_mtp_layers, 1);
  EXPECT_EQ(c.total_layers(), 3);
  EXPECT_EQ(c.num_heads, 2);
  EXPECT_EQ(c.q_lora_rank, 16);
  EXPECT_EQ(c.kv_lora_rank, 32);
  EXPECT_EQ(c.latent_dim(), 36);
  EXPECT_EQ(c.qk_head_dim(), 12);
  EXPECT_EQ(c.v_head_dim, 12);
  EXPECT_EQ(c.n_routed_experts, 4);
  EXPECT_EQ(c.n_shared_experts, 1);
  EXPECT_EQ(c.num_experts_per_tok, 2);
  EXPECT_FALSE(c.IsMoeLayer(0));
  EXPECT_TRUE(c.IsMoeLayer(1));
  EXPECT_TRUE(c.IsMoeLayer(2));
  EXPECT_EQ(c.router.scoring, RouterConfig::kSigmoid);
  EXPECT_EQ(c.router.selection, RouterConfig::kGroupTopTwoBiased);
  EXPECT_EQ(c.router.n_group, 2);
  EXPECT_EQ(c.router.topk_group, 1);
  EXPECT_TRUE(c.router.norm_topk_prob);
  EXPECT_EQ(c.router.routed_scaling_factor, 2.5f);
  EXPECT_EQ(c.rope_theta, 10000.0f);
  ASSERT_TRUE(c.yarn.has_value());
  EXPECT_EQ(c.yarn->factor, 40.0f);
  EXPECT_EQ(c.yarn->original_max_position_embeddings, 16);
  EXPECT_EQ(c.yarn->beta_fast, 32.0f);
  EXPECT_EQ(c.yarn->beta_slow, 1.0f);
  EXPECT_EQ(c.yarn->mscale, 1.0f);
  EXPECT_EQ(c.yarn->mscale_all_dim, 1.0f);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.max_position_embeddings, 512);
  EXPECT_TRUE(c.fp8);
  EXPECT_FALSE(c.scale_ue8m0);
  EXPECT_EQ(c.bos, TokenId{0});
  EXPECT_EQ(c.eos, std::vector<TokenId>{TokenId{1}});
  EXPECT_FALSE(c.tie_word_embeddings);
}

TEST(ModelConfig, PublishedVariants) {
  const ModelConfig lite = Parse({"model_type=\"deepseek_v2\"", "q_lora_rank=null", "n_group=1",
                                  "topk_method=\"greedy\"", "scoring_func=\"softmax\"",
                                  "norm_topk_prob=false", "num_nextn_predict_layers="});
  EXPECT_EQ(lite.q_lora_rank, 0);
  EXPECT_EQ(lite.num_mtp_layers, 0);
  EXPECT_EQ(lite.router.scoring, RouterConfig::kSoftmax);
  EXPECT_EQ(lite.router.selection, RouterConfig::kGreedy);

  const ModelConfig v2 =
      Parse({"model_type=\"deepseek_v2\"", "topk_method=\"group_limited_greedy\"",
             "scoring_func=\"softmax\"", "norm_topk_prob=false"});
  EXPECT_EQ(v2.router.selection, RouterConfig::kGroupMax);

  EXPECT_TRUE(Parse({"quantization_config.scale_fmt=\"ue8m0\""}).scale_ue8m0);
  EXPECT_EQ(Parse({"n_routed_experts=null"}).IsMoeLayer(1), false);
  EXPECT_EQ(Parse({"eos_token_id=[1, 3]"}).eos.size(), 2u);
  EXPECT_FALSE(Parse({"bos_token_id=null"}).bos.has_value());
  EXPECT_TRUE(Parse({"moe_layer_freq=2"}).IsMoeLayer(2));
  EXPECT_FALSE(Parse({"moe_layer_freq=2"}).IsMoeLayer(1));
}

TEST(ModelConfig, DefaultsAreThoseOfThePublishedClasses) {
  const ModelConfig v3 =
      Parse({"scoring_func=", "topk_method=", "norm_topk_prob=", "routed_scaling_factor=",
             "moe_layer_freq=", "rms_norm_eps=", "rope_theta=", "rope_scaling=",
             "quantization_config=", "attention_bias=", "tie_word_embeddings=", "hidden_act="});
  EXPECT_EQ(v3.router.scoring, RouterConfig::kSigmoid);
  EXPECT_EQ(v3.router.selection, RouterConfig::kGroupTopTwoBiased);
  EXPECT_TRUE(v3.router.norm_topk_prob);
  EXPECT_EQ(v3.router.routed_scaling_factor, 2.5f);
  EXPECT_EQ(v3.rope_theta, 10000.0f);
  EXPECT_FALSE(v3.yarn.has_value());
  EXPECT_FALSE(v3.fp8);
  const ModelConfig v2 =
      Parse({"model_type=\"deepseek_v2\"",
             "scoring_func=", "topk_method=", "norm_topk_prob=", "routed_scaling_factor="});
  EXPECT_EQ(v2.router.selection, RouterConfig::kGreedy);
  EXPECT_FALSE(v2.router.norm_topk_prob);
  EXPECT_EQ(v2.router.routed_scaling_factor, 1.0f);
}

TEST(ModelConfig, RopeSpellings) {
  // transformers 5: theta and scaling in one object.
  const ModelConfig new_names =
      Parse({"rope_theta=", "rope_scaling=",
             R"(rope_parameters={"rope_type": "yarn", "rope_theta": 50000, "factor": 4,
                                 "original_max_position_embeddings": 128})"});
  EXPECT_EQ(new_names.rope_theta, 50000.0f);
  ASSERT_TRUE(new_names.yarn.has_value());
  EXPECT_EQ(new_names.yarn->factor, 4.0f);
  EXPECT_EQ(new_names.yarn->beta_fast, 32.0f);
  EXPECT_FALSE(new_names.yarn->mscale.has_value());

  EXPECT_FALSE(Parse({"rope_scaling=null"}).yarn.has_value());
  EXPECT_FALSE(Parse({R"(rope_scaling={"type": "default"})"}).yarn.has_value());
  EXPECT_FALSE(Parse({"rope_scaling.mscale=0"}).yarn->mscale.has_value());
  EXPECT_FALSE(Parse({"rope_scaling.mscale_all_dim="}).yarn->mscale_all_dim.has_value());
}

// Each edit, and what the error must name.
constexpr std::pair<std::string_view, std::string_view> kRefusals[] = {
    {"model_type=\"llama\"", "model_type \"llama\" is not supported"},
    {"model_type=", "model_type"},
    {"architectures=[\"LlamaForCausalLM\"]", "architectures"},
    {"architectures=\"x\"", "architectures"},
    {"vocab_size=", "vocab_size is missing"},
    {"hidden_size=null", "hidden_size is missing"},
    {"hidden_size=0", "hidden_size must be an integer from 1"},
    {"hidden_size=-5", "hidden_size must be"},
    {"hidden_size=12.5", "hidden_size must be"},
    {"hidden_size=\"160\"", "hidden_size must be"},
    {"hidden_size=99999999999999999999", "hidden_size must be"},
    {"vocab_size=2147483647", "vocab_size must be"},
    {"num_attention_heads=0", "num_attention_heads must be"},
    {"num_key_value_heads=1", "num_key_value_heads is 1"},
    {"qk_rope_head_dim=5", "qk_rope_head_dim is 5"},
    {"num_hidden_layers=100000", "num_hidden_layers must be"},
    {"num_nextn_predict_layers=17", "num_nextn_predict_layers must be"},
    {"num_experts_per_tok=5", "num_experts_per_tok (5) is more than n_routed_experts (4)"},
    {"num_experts_per_tok=3", "num_experts_per_tok (3) is more than the 2 experts"},
    {"n_group=3", "n_group (3) does not divide n_routed_experts (4)"},
    {"n_group=", "n_group is missing"},
    {"n_group=4", "noaux_tc scores a group by its best two"},
    {"topk_group=3", "topk_group (3) is more than n_group (2)"},
    {"first_k_dense_replace=", "first_k_dense_replace is missing"},
    {"moe_intermediate_size=", "moe_intermediate_size is missing"},
    {"moe_layer_freq=0", "moe_layer_freq must be"},
    {"scoring_func=\"tanh\"", "scoring_func tanh with topk_method noaux_tc"},
    {"topk_method=\"best\"", "topk_method best"},
    {"routed_scaling_factor=0", "routed_scaling_factor must be"},
    {"norm_topk_prob=1", "norm_topk_prob must be true or false"},
    {"attention_bias=true", "attention_bias true"},
    {"hidden_act=\"gelu\"", "hidden_act \"gelu\""},
    {"rms_norm_eps=-1", "rms_norm_eps must be"},
    {"rms_norm_eps=0", "rms_norm_eps must be"},
    {"rms_norm_eps=1e999", "JSON"},
    {"rope_theta=0", "rope_theta must be"},
    {"rope_interleave=false", "rope_interleave false"},
    {"rope_scaling.type=\"linear\"", "rope_type \"linear\" is not supported"},
    {"rope_scaling.type=", "rope_type \"\" is not supported"},
    {"rope_scaling.rope_type=\"default\"", "rope_type is default, but rope_scaling.type is yarn"},
    {"rope_scaling.rope_theta=20000", "rope_theta is 10000, but rope_scaling.rope_theta is 20000"},
    {"rope_scaling.factor=", "rope_scaling.factor is missing"},
    {"rope_scaling.factor=0.5", "rope_scaling.factor must be"},
    {"rope_scaling.original_max_position_embeddings=", "original_max_position_embeddings"},
    {"rope_scaling.beta_fast=0.5", "beta_fast (0.5) is less than its beta_slow (1)"},
    {"rope_scaling.attention_factor=1.5", "attention_factor"},
    {"rope_scaling.truncate=false", "truncate"},
    {"rope_scaling=[1]", "rope_scaling must be an object"},
    {"rope_parameters={\"rope_type\":\"default\"}", "both given"},
    {"quantization_config.quant_method=\"awq\"", "quant_method \"awq\" is not supported"},
    {"quantization_config.quant_method=", "quant_method"},
    {"quantization_config.fmt=\"e5m2\"", "fmt \"e5m2\" is not supported"},
    {"quantization_config.activation_scheme=\"static\"", "activation_scheme \"static\""},
    {"quantization_config.scale_fmt=\"ue4m3\"", "scale_fmt \"ue4m3\" is not supported"},
    {"quantization_config.weight_block_size=[64, 128]", "weight_block_size must be [128, 128]"},
    {"quantization_config.weight_block_size=", "weight_block_size must be [128, 128]"},
    {"bos_token_id=20", "bos_token_id must be a token id below vocab_size (20)"},
    {"eos_token_id=[1, -1]", "eos_token_id must be"},
    {"eos_token_id=\"</s>\"", "eos_token_id must be"},
    {"tie_word_embeddings=\"no\"", "tie_word_embeddings must be"},
};

TEST(ModelConfig, Refuses) {
  for (const auto& [edit, expected] : kRefusals) {
    std::string message;
    if (edit == "rms_norm_eps=1e999") {  // not to be written through a JSON library
      const Result<ModelConfig> config = ParseModelConfig(R"({"rms_norm_eps": 1e999})");
      message = config.ok() ? "no error" : config.status().message();
      EXPECT_FALSE(config.ok());
      continue;
    }
    message = Error({std::string(edit)});
    EXPECT_NE(message.find(expected), std::string::npos) << edit << ": " << message;
  }
}

TEST(ModelConfig, TooManyExpertsInAll) {
  const std::string message =
      Error({"num_hidden_layers=1024", "n_routed_experts=4096", "n_group=2"});
  EXPECT_NE(message.find("are more than fathom reads"), std::string::npos) << message;
}

TEST(ModelConfig, SoftmaxWithNormalisedWeights) {
  const std::string message = Error({"scoring_func=\"softmax\"", "topk_method=\"greedy\""});
  EXPECT_NE(message.find("norm_topk_prob true with scoring_func softmax"), std::string::npos);
}

TEST(ModelConfig, SaysEverythingAtOnce) {
  const std::string message = Error({"hidden_size=0", "hidden_act=\"gelu\"", "n_group=3"});
  EXPECT_NE(message.find("3 problems"), std::string::npos) << message;
  EXPECT_NE(message.find("hidden_size"), std::string::npos);
  EXPECT_NE(message.find("hidden_act"), std::string::npos);
  EXPECT_NE(message.find("n_group"), std::string::npos);
}

TEST(ModelConfig, BrokenJson) {
  for (const std::string_view text : {"", "{", "[]", "null", "{\"a\":1}x", "\xff"}) {
    EXPECT_FALSE(ParseModelConfig(text).ok()) << text;
  }
  const std::string deep = "{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}";
  EXPECT_FALSE(ParseModelConfig(deep).ok());
}

TEST(GenerationConfig, ReadsAndRefuses) {
  const Result<GenerationConfig> config = ParseGenerationConfig(
      R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "do_sample": false,
          "repetition_penalty": 1.1, "max_new_tokens": 300, "eos_token_id": [1, 2],
          "transformers_version": "4.46"})",
      10);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->temperature, 0.6f);
  EXPECT_EQ(config->top_p, 0.95f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->min_p, 0.05f);
  EXPECT_EQ(config->repetition_penalty, 1.1f);
  EXPECT_EQ(config->max_new_tokens, 300);
  EXPECT_FALSE(config->do_sample);
  EXPECT_EQ(config->eos.size(), 2u);

  const Result<GenerationConfig> empty = ParseGenerationConfig("{}", 10);
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->temperature.has_value());
  EXPECT_FALSE(empty->top_k.has_value());
  EXPECT_FALSE(empty->max_new_tokens.has_value());
  EXPECT_TRUE(empty->do_sample);

  for (const auto& [text, field] : {std::pair{R"({"temperature": -1})", "temperature"},
                                    {R"({"top_p": 0})", "top_p"},
                                    {R"({"top_k": 1.5})", "top_k"},
                                    {R"({"min_p": 2})", "min_p"},
                                    {R"({"repetition_penalty": 0})", "repetition_penalty"},
                                    {R"({"max_new_tokens": 0})", "max_new_tokens"},
                                    {R"({"eos_token_id": 10})", "eos_token_id"},
                                    {R"({"do_sample": "yes"})", "do_sample"}}) {
    const Result<GenerationConfig> bad = ParseGenerationConfig(text, 10);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_NE(bad.status().message().find(field), std::string::npos);
  }
}

}  // namespace
}  // namespace fathom
