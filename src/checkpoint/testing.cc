#include "checkpoint/testing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/schema.h"

namespace fathom::testing {
namespace {

constexpr std::string_view kSmallConfig = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
  "vocab_size": 20, "hidden_size": 160, "intermediate_size": 136, "moe_intermediate_size": 24,
  "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 8,
  "qk_rope_head_dim": 4, "v_head_dim": 12, "n_routed_experts": 4, "n_shared_experts": 1,
  "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 2, "topk_group": 1,
  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "hidden_act": "silu",
  "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 512,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 16,
                   "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                          "weight_block_size": [128, 128]},
  "attention_bias": false, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1
})";

}  // namespace

TestTensor RandomTensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  uint64_t seed = 0;
  for (const char c : name) seed = seed * 31 + static_cast<unsigned char>(c);
  Rng rng(seed);
  TestTensor tensor{std::move(name), std::string(Name(dtype)), std::move(shape), {}};
  for (int64_t i = 0; i < elements; ++i) {
    const float value = rng.Normal();
    char bytes[4] = {};
    if (dtype == DType::kF32) {
      std::memcpy(bytes, &value, 4);
    } else if (dtype == DType::kF8E4M3) {
      bytes[0] = static_cast<char>(rng.Below(127) | (rng.Next() & 0x80));
    } else {
      const BF16 rounded = ToBF16(value);
      std::memcpy(bytes, &rounded, 2);
    }
    tensor.bytes.append(bytes, ByteSize(dtype));
  }
  return tensor;
}

std::string WithHeader(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  file += header;
  return file += data;
}

std::string Safetensors(const std::vector<TestTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const TestTensor& tensor : tensors) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          tensor.name, tensor.dtype, fmt::join(tensor.shape, ","), data.size(),
                          data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return WithHeader(header, data);
}

std::string SmallConfig(const std::vector<std::string>& edits) {
  boost::json::value config = boost::json::parse(kSmallConfig);
  for (const std::string& edit : edits) {
    const size_t equals = edit.find('=');
    std::string key = edit.substr(0, equals);
    const std::string value = edit.substr(equals + 1);
    boost::json::object* object = &config.get_object();
    if (const size_t dot = key.find('.'); dot != std::string::npos) {
      object = &object->at(key.substr(0, dot)).get_object();
      key = key.substr(dot + 1);
    }
    if (value.empty()) {
      CHECK(object->erase(key) == 1, "no key {}", key);
    } else {
      (*object)[key] = boost::json::parse(value);
    }
  }
  return boost::json::serialize(config);
}

ModelConfig SmallModelConfig(const std::vector<std::string>& edits) {
  Result<ModelConfig> config = ParseModelConfig(SmallConfig(edits));
  CHECK(config.ok(), "{}", config.status().ToString());
  return *std::move(config);
}

std::vector<TestTensor> SmallModel(const ModelConfig& config) {
  std::vector<TestTensor> tensors;
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    const TensorRule& rule = *entry.rule;
    const std::vector<int64_t> shape = Shape(rule, config);
    const bool bias = entry.name.ends_with("e_score_correction_bias");
    const bool fp8 = config.fp8 && rule.PublishedInFp8();
    const DType dtype = fp8 ? DType::kF8E4M3 : bias ? DType::kF32 : DType::kBF16;
    tensors.push_back(RandomTensor(entry.name, dtype, shape));
    if (!fp8) continue;
    tensors.push_back(RandomTensor(entry.name + "_scale_inv", DType::kF32,
                                   {(shape[0] + 127) / 128, (shape[1] + 127) / 128}));
  }
  // Wide types first, so that each is aligned.
  std::stable_sort(tensors.begin(), tensors.end(), [](const TestTensor& a, const TestTensor& b) {
    const auto width = [](const TestTensor& t) {
      return t.dtype == "F32" ? 4 : t.dtype == "BF16" ? 2 : 1;
    };
    return width(a) > width(b);
  });
  return tensors;
}

TestTensor& Named(std::vector<TestTensor>& tensors, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TestTensor& tensor) { return tensor.name == name; });
  CHECK(found != tensors.end(), "no tensor {}", name);
  return *found;
}

void Remove(std::vector<TestTensor>& tensors, std::string_view name) {
  tensors.erase(tensors.begin() + (&Named(tensors, name) - tensors.data()));
}

std::string OpenError(const std::string& path) {
  const Result<Checkpoint> checkpoint = Checkpoint::Open(path);
  return checkpoint.ok() ? "no error" : checkpoint.status().message();
}

void WriteModel(const TestFolder& folder, const std::string& config,
                const std::vector<TestTensor>& tensors) {
  folder.Write("config.json", config);
  folder.Write("model.safetensors", Safetensors(tensors));
}

}  // namespace fathom::testing
