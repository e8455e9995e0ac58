// Which tensors a checkpoint has, declared once: loading, validation and `fathom inspect` read it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"

namespace fathom {

// Sizes that tensors have, in terms of ModelConfig.
enum class Dim : uint8_t {
  kNone,         // no such dimension
  kVocab,        // vocab_size
  kHidden,       // hidden_size
  kTwoHidden,    // 2 * hidden_size
  kInter,        // intermediate_size
  kMoeInter,     // moe_intermediate_size
  kSharedInter,  // n_shared_experts * moe_intermediate_size
  kQLora,        // q_lora_rank
  kQHeads,       // num_heads * (qk_nope_head_dim + qk_rope_head_dim)
  kLatent,       // kv_lora_rank
  kLatentRope,   // kv_lora_rank + qk_rope_head_dim
  kKvHeads,      // num_heads * (qk_nope_head_dim + v_head_dim)
  kVHeads,       // num_heads * v_head_dim
  kExperts,      // n_routed_experts
};
int64_t Size(Dim dim, const ModelConfig& config);
std::string_view Name(Dim dim);  // the formula, in the words of config.json

// How a tensor is cut over the ranks of a tensor-parallel group.
enum class ShardAxis : uint8_t {
  kNone,          // every rank has all of it
  kOutputs,       // output features
  kChannels,      // input features
  kHeadOutputs,   // output features, whole heads
  kHeadChannels,  // input features, whole heads
  kVocab,         // outputs, a range of the vocabulary
};
std::string_view Name(ShardAxis axis);

// One line of the schema. A pattern's "{layer}" and "{expert}" stand for numbers; tensors with
// "{expert}" can also be placed whole, by expert.
struct TensorRule {
  enum Scope : uint8_t { kModel, kEveryLayer, kDenseLayer, kMoeLayer, kMtpLayer };
  enum Kind : uint8_t {
    kVector,  // norms and biases: BF16, F16 or F32
    kMatrix,  // BF16, F16 or F32
    kLinear,  // BF16, F16, F32, or F8_E4M3 with "<name>_scale_inv", F32, one scale per 128x128 tile
  };
  std::string_view pattern;
  Scope scope;
  Kind kind;
  std::array<Dim, 2> shape;  // the second is kNone for vectors
  ShardAxis axis;
  bool (*wanted)(const ModelConfig&) = nullptr;    // null: always
  bool (*optional)(const ModelConfig&) = nullptr;  // null: never; may be missing, checked if there

  // An MTP layer's copy of embedding or head, whose place the main model's take.
  bool RepeatsMain() const { return scope == kMtpLayer && optional != nullptr; }
  // Whether it is E4M3 in the FP8 checkpoints that DeepSeek publishes: the draft layer's projection
  // is BF16 in V3's and R1's (a table of checkpoints in ROCm/ATOM's pull request 755).
  bool PublishedInFp8() const { return kind == kLinear && !pattern.ends_with("eh_proj.weight"); }
  // gate_proj, up_proj or down_proj, of an expert or not.
  bool InMlp() const { return kind == kLinear && pattern.find(".mlp.") != pattern.npos; }
};

// The shape that a tensor of this rule has: one or two sizes.
std::vector<int64_t> Shape(const TensorRule& rule, const ModelConfig& config);
// "[256, 128] (hidden_size, moe_intermediate_size)".
std::string DescribeShape(const TensorRule& rule, const ModelConfig& config);

// A tensor that a model of this configuration has.
struct SchemaEntry {
  std::string name;
  const TensorRule* rule;
  int32_t layer = -1;   // -1 outside layers
  int32_t expert = -1;  // -1 outside experts
};
std::vector<SchemaEntry> ExpectedTensors(const ModelConfig& config);
// Its bytes in the checkpoints that DeepSeek publishes, scales included: FP8 if config.fp8 and
// PublishedInFp8(), and else BF16, but for the router's bias, F32.
uint64_t PublishedBytes(const SchemaEntry& entry, const ModelConfig& config);
// The rule of a tensor by its name. REQUIRES: there is one.
const TensorRule& RuleOf(std::string_view name);

}  // namespace fathom
