#include "step_work.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"
#include "checkpoint/presets.h"
#include "checkpoint/schema.h"
#include "quant/weight_format.h"

namespace fathom {
namespace {

constexpr WeightWidths kOne = {.linear = 1, .absorbed = 1, .head = 1, .embedding = 1};

KvFormat Kv(DType dtype = DType::kBF16) {
  return LatentKvFormat(dtype, 512, 64);
}

ModelConfig Preset(const char* name) {
  Result<ModelConfig> config = PresetConfig(name);
  CHECK(config.ok());
  return *config;
}

TEST(StepWork, OneStreamOfV2LiteReadsWhatIsActive) {
  const ModelConfig config = Preset("v2-lite");
  const StepWork work = WorkOf({.absorbed = true}, config, kOne, Kv());
  // By hand, from the published dimensions.
  const double attention = 2048.0 * 3072 + 576.0 * 2048 + 2048.0 * 2048 + 16 * 512.0 * 256;
  const double experts = (6 + 2) * 3 * 2048.0 * 1408, dense = 3 * 2048.0 * 10944;
  const double linear = 27 * attention + dense + 26 * experts;
  const double head = 102400 * 2048.0, gates = 26 * 64 * 2048.0;
  const double norms = 27 * (2 * 2048 + 512) + 2048;
  EXPECT_DOUBLE_EQ(work.weight_bytes, linear + head + 2048 + 4 * (gates + norms));
  const double keys = 27 * 16 * (2 * 512 + 64);  // the token sees itself
  EXPECT_DOUBLE_EQ(work.operations, 2 * (linear + head + gates + keys));
  EXPECT_DOUBLE_EQ(work.linear_operations, 2 * (linear - 27 * 16 * 512.0 * 256));
  EXPECT_EQ(work.cache_read_bytes, 0);
  EXPECT_EQ(work.cache_written_bytes, 27 * 576 * 2);
}

TEST(StepWork, FP8PositionsHaveCodesScaleAndKey) {
  const ModelConfig config = Preset("v2-lite");
  const KvFormat fp8 = Kv(DType::kF8E4M3);
  const StepWork work = WorkOf({.absorbed = true}, config, kOne, fp8);
  EXPECT_EQ(work.cache_written_bytes, 27 * (512 + 4 + 64 * 2));
}

TEST(StepWork, FP8V2LiteReadsAbout266GbAToken) {
  const WeightWidths widths = {.linear = WeightFormat::kFp8.bytes_per_weight(),
                               .absorbed = WeightFormat::kFp8.bytes_per_weight()};
  const StepWork work = WorkOf({.context = 512, .absorbed = true}, Preset("v2-lite"), widths, Kv());
  EXPECT_NEAR(work.bytes(), 2.68e9, 0.01e9);
  EXPECT_EQ(work.cache_read_bytes, 512 * 27 * 576 * 2);
}

// A step that draws every expert reads the whole model: the schema says how large it is.
TEST(StepWork, ManyTokensReadEveryTensorOfTheSchema) {
  for (const char* name : {"v2-lite", "v2", "v3"}) {
    ModelConfig config = Preset(name);
    config.num_mtp_layers = 0;
    double expected = 0;
    for (const SchemaEntry& entry : ExpectedTensors(config)) {
      double elements = 1;
      for (const int64_t n : Shape(*entry.rule, config)) elements *= static_cast<double>(n);
      if (entry.name == "model.embed_tokens.weight") continue;
      const bool fp32 =
          entry.rule->kind == TensorRule::kVector || entry.name.ends_with("mlp.gate.weight");
      expected += elements * (fp32 ? 4 : 1);
    }
    const WorkShape step = {.rows = 1, .tokens = 4096};
    const double embedding = 4096.0 * config.hidden_size;
    EXPECT_NEAR(WorkOf(step, config, kOne, Kv()).weight_bytes - embedding, expected,
                1e-9 * expected)
        << name;
  }
}

TEST(StepWork, TheTwoFormsOfAttentionMeetNear170Tokens) {
  const ModelConfig config = Preset("v3");
  const auto operations = [&](int64_t tokens, bool absorbed) {
    return WorkOf({.rows = 1, .tokens = tokens, .context = 1e6, .absorbed = absorbed}, config, kOne,
                  Kv())
        .operations;
  };
  EXPECT_LT(operations(168, true), operations(168, false));
  EXPECT_GT(operations(173, true), operations(173, false));
}

TEST(StepWork, RowsShareWeightsButNotCaches) {
  const ModelConfig config = Preset("v2-lite");
  const StepWork one = WorkOf({.rows = 1, .context = 100, .absorbed = true}, config, kOne, Kv());
  const StepWork many = WorkOf({.rows = 32, .context = 100, .absorbed = true}, config, kOne, Kv());
  EXPECT_DOUBLE_EQ(many.cache_read_bytes, 32 * one.cache_read_bytes);
  EXPECT_NEAR(many.operations, 32 * one.operations, 1e-9 * many.operations);
  const double expert = 26 * 3 * 2048.0 * 1408;
  EXPECT_NEAR(many.weight_bytes - one.weight_bytes,
              (ExpectedExperts(64, 6, 32) - 6) * expert + 31 * 2048, 1);
  const StepWork alike =
      WorkOf({.rows = 32, .context = 100, .absorbed = true, .experts = 6}, config, kOne, Kv());
  EXPECT_NEAR(alike.weight_bytes - one.weight_bytes, 31 * 2048, 1);
}

TEST(ExpectedExperts, AgreesWithDrawing) {
  EXPECT_DOUBLE_EQ(ExpectedExperts(64, 6, 1), 6);
  EXPECT_DOUBLE_EQ(ExpectedExperts(64, 64, 3), 64);
  Rng rng(1);
  constexpr int kTrials = 2000, kTokens = 8, kTopk = 6;
  size_t drawn = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::set<uint32_t> all;
    for (int t = 0; t < kTokens; ++t) {
      std::set<uint32_t> own;
      while (own.size() < kTopk) own.insert(rng.Below(64));
      all.insert(own.begin(), own.end());
    }
    drawn += all.size();
  }
  EXPECT_NEAR(static_cast<double>(drawn) / kTrials, ExpectedExperts(64, kTopk, kTokens), 0.3);
}

}  // namespace
}  // namespace fathom
