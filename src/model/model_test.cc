#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/presets.h"
#include "cpu/cpu_device.h"
#include "model/attention.h"
#include "model/model.h"
#include "model/rope.h"

namespace fathom {
namespace {

TEST(Attention, FormsCostTheSameNear171Tokens) {
  EXPECT_EQ(AbsorbedLimit(PresetConfig("v3").value()), 170);
  EXPECT_EQ(AbsorbedLimit(PresetConfig("v2-lite").value()), 170);
}

TEST(Model, IsRefusedByNameBeyondWhatOpsAreMadeFor) {
  ModelConfig config = PresetConfig("v3").value();
  config.vocab_size = 64;
  const Checkpoint checkpoint = Checkpoint::Dummy(config, 0);
  CpuDevice device(1);
  Ops ops = ReferenceOps(Fp8Activations::kExact);
  ops.limits = {.norm_width = 8192, .experts = 255, .topk = 32};
  const auto refused = Model::Load(checkpoint, ops, device, {}, nullptr);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(refused.status().message(), "n_routed_experts 256: reference ops take at most 255");
}

TEST(Rope, SoftmaxScaleTakesMscaleAllDimSquared) {
  ModelConfig config = PresetConfig("v3").value();
  const double g = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(SoftmaxScale(config), g * g / std::sqrt(192.0), 1e-8);
  config.yarn->mscale_all_dim.reset();
  EXPECT_NEAR(SoftmaxScale(config), 1 / std::sqrt(192.0), 1e-8);
  config.yarn.reset();
  EXPECT_NEAR(SoftmaxScale(config), 1 / std::sqrt(192.0), 1e-8);
}

// Length of the first pair's (cos, sin): what YaRN multiplies both by.
double Magnitude(const ModelConfig& config) {
  const std::vector<float> table = CosSinTable(config, 2);
  const size_t half = static_cast<size_t>(config.qk_rope_head_dim) / 2;
  return std::hypot(table[2 * half], table[3 * half]);
}

TEST(Rope, CosAndSinTakeTheRatioOrTheDefaultWhenEitherIsAbsent) {
  ModelConfig config = PresetConfig("v3").value();
  const auto g = [](double mscale) { return 0.1 * mscale * std::log(40.0) + 1; };
  config.yarn->mscale = 1.0f;
  config.yarn->mscale_all_dim = 0.707f;
  EXPECT_NEAR(Magnitude(config), g(1) / g(0.707f), 1e-6);
  config.yarn->mscale_all_dim.reset();
  EXPECT_NEAR(Magnitude(config), g(1), 1e-6);
  config.yarn->mscale_all_dim = 0.707f;
  config.yarn->mscale.reset();
  EXPECT_NEAR(Magnitude(config), g(1), 1e-6);
  config.yarn.reset();
  EXPECT_NEAR(Magnitude(config), 1, 1e-6);
}

TEST(Rope, HighFrequenciesStayAndLowOnesAreInterpolated) {
  ModelConfig config = PresetConfig("v3").value();
  const std::vector<float> scaled = CosSinTable(config, 2);
  const double factor = config.yarn->factor;
  config.yarn.reset();
  const std::vector<float> plain = CosSinTable(config, 2);
  const size_t half = static_cast<size_t>(config.qk_rope_head_dim) / 2, sin = 3 * half;
  EXPECT_FLOAT_EQ(scaled[sin], plain[sin]);  // one turn a few tokens: untouched
  EXPECT_NEAR(scaled[sin + half - 1], plain[sin + half - 1] / factor, 1e-9);
}

}  // namespace
}  // namespace fathom
