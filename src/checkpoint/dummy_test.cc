#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/presets.h"
#include "checkpoint/schema.h"

namespace fathom {
namespace {

// Parameters of the main model, in billions.
double Billions(const ModelConfig& config) {
  double parameters = 0;
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    if (entry.layer >= config.num_layers) continue;
    double count = 1;
    for (const int64_t n : Shape(*entry.rule, config)) count *= static_cast<double>(n);
    parameters += count;
  }
  return parameters / 1e9;
}

TEST(Presets, HaveThePublishedSizes) {
  EXPECT_NEAR(Billions(PresetConfig("v2-lite").value()), 15.7, 0.05);
  EXPECT_NEAR(Billions(PresetConfig("v2").value()), 236, 0.5);
  EXPECT_NEAR(Billions(PresetConfig("v3").value()), 671, 0.5);
  EXPECT_EQ(PresetConfig("v9").status().code(), StatusCode::kInvalidArgument);
}

ModelConfig SmallConfig(bool fp8) {
  ModelConfig config = PresetConfig("v3").value();
  config.num_layers = 5;
  config.n_routed_experts = 16;
  config.hidden_size = 448;
  config.vocab_size = 512;
  config.fp8 = fp8;
  return config;
}

TEST(Dummy, HasEveryTensorOfTheSchema) {
  for (const bool fp8 : {false, true}) {
    const ModelConfig config = SmallConfig(fp8);
    const Checkpoint checkpoint = Checkpoint::Dummy(config, 1);
    uint64_t bytes = 0;
    for (const SchemaEntry& entry : ExpectedTensors(config)) {
      if (entry.rule->optional != nullptr && entry.rule->optional(config)) continue;
      ASSERT_TRUE(checkpoint.Has(entry.name)) << entry.name;
      const WeightTensor weight = checkpoint.Get(entry.name);
      const std::vector<int64_t> shape = Shape(*entry.rule, config);
      for (size_t i = 0; i < shape.size(); ++i) {
        EXPECT_EQ(weight.values.dim(static_cast<int>(i)), shape[i]);
      }
      EXPECT_EQ(!weight.scales.absent(), fp8 && entry.rule->PublishedInFp8());
      bytes += checkpoint.Bytes(entry.name);
    }
    EXPECT_EQ(bytes, checkpoint.total_bytes());
  }
}

TEST(Dummy, NumbersArePlausibleAndTheSameForASeed) {
  const Checkpoint one = Checkpoint::Dummy(SmallConfig(true), 7);
  const Checkpoint same = Checkpoint::Dummy(SmallConfig(true), 7);
  const Checkpoint other = Checkpoint::Dummy(SmallConfig(true), 8);
  const std::string name = "model.layers.3.mlp.experts.2.down_proj.weight";
  const WeightTensor w = one.Get(name);
  double squares = 0;
  int differ = 0;
  for (int64_t i = 0; i < 400; ++i) {
    for (int64_t j = 0; j < 200; ++j) {
      const float x = Dequantize(w, i, j);
      EXPECT_EQ(x, Dequantize(same.Get(name), i, j));
      differ += x != Dequantize(other.Get(name), i, j);
      squares += x * x;
    }
  }
  EXPECT_NEAR(std::sqrt(squares / 80000), 0.02, 0.004);
  EXPECT_GT(differ, 70000);
}

}  // namespace
}  // namespace fathom
