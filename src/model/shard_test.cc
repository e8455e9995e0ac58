#include "model/shard.h"

#include <gtest/gtest.h>

#include "checkpoint/presets.h"

namespace fathom {
namespace {

std::string Refused(const ModelConfig& config, const ParallelLayout& layout) {
  return std::string(CheckLayout(config, layout).message());
}

TEST(Shard, WhatCannotBeSharedOutIsRefusedWithWhatWouldDo) {
  ModelConfig v3 = PresetConfig("v3").value();
  EXPECT_EQ(Refused(v3, {.data = 8, .experts = true}), "");
  EXPECT_EQ(Refused(v3, {.tensor = 4, .data = 8, .experts = true}), "");
  EXPECT_EQ(Refused(v3, {.tensor = 4, .data = 8}), "");
  EXPECT_NE(Refused(v3, {.tensor = 8, .data = 257}).find("at most 256 would do"),
            std::string::npos);
  EXPECT_NE(Refused(v3, {.tensor = 4, .data = 65, .experts = true}).find("at most 64 would do"),
            std::string::npos);
  EXPECT_NE(Refused(v3, {.tensor = 3}).find("1, 2, 4, 8, 16"), std::string::npos);
  v3.n_routed_experts = 0;
  EXPECT_NE(Refused(v3, {.experts = true}).find("has no experts"), std::string::npos);
}

// Every layer is one stage's, and no other cut leaves the largest stage with less.
TEST(Shard, StagesShareBytesOut) {
  ModelConfig config = PresetConfig("v2-lite").value();
  config.num_layers = 6;
  const Ops& ops = ReferenceOps(Fp8Activations::kExact);
  const TensorSizes stored = PublishedSizes(config);
  const auto bytes = [&](int stages, int stage) {
    return PartBytes(config, ops, {.layout = {.pipeline = stages}, .stage = stage}, stored);
  };
  const size_t whole = PartBytes(config, ops, {}, stored);
  for (const int stages : {2, 3, 6}) {
    size_t sum = 0, most = 0;
    int64_t end = 0;
    for (int stage = 0; stage < stages; ++stage) {
      const Share layers =
          LayersOf(config, {.layout = {.pipeline = stages}, .stage = stage}, stored);
      EXPECT_EQ(layers.begin, end);
      EXPECT_GT(layers.size(), 0);
      end = layers.end;
      sum += bytes(stages, stage);
      most = std::max(most, bytes(stages, stage));
    }
    EXPECT_EQ(end, config.num_layers);
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(whole), stages);
    // Layers of experts, the largest that there are, are the unit in which stages can differ.
    EXPECT_LT(most, whole / static_cast<size_t>(stages) + whole / 6);
  }
  EXPECT_EQ(Refused(config, {.pipeline = 6}), "");
  EXPECT_EQ(Refused(config, {.pipeline = 2, .bf16_residual = true}), "");
  EXPECT_NE(Refused(config, {.bf16_residual = true}).find("hands nothing on"), std::string::npos);
  EXPECT_NE(Refused(config, {.pipeline = 7}).find("has 6 layers"), std::string::npos);
  EXPECT_NE(Refused(config, {.pipeline = 7}).find("at most 6 would do"), std::string::npos);
}

// Eight layers of experts on one stage are the least that one of eight must have; dense layers,
// which are small, leave room for as many on theirs, and take as long.
TEST(Shard, StagesWithAsManyBytesShareWhatATokenReads) {
  ModelConfig config = PresetConfig("v3").value();
  config.num_mtp_layers = 0;
  const TensorSizes stored = PublishedSizes(config);
  for (int stage = 0; stage < 8; ++stage) {
    const Share layers = LayersOf(config, {.layout = {.pipeline = 8}, .stage = stage}, stored);
    EXPECT_EQ(layers.begin, 8 * stage);
    EXPECT_EQ(layers.size(), stage < 7 ? 8 : 5);
  }
}

// Each routed expert is one rank's, and all else every group's.
TEST(Shard, PartsOfExpertParallelRanks) {
  ModelConfig config = PresetConfig("v2-lite").value();
  config.num_layers = 3;
  const Ops& ops = ReferenceOps(Fp8Activations::kExact);
  const TensorSizes stored = PublishedSizes(config);
  size_t routed = 0;
  for (const auto& [entry, bytes] : stored) {
    if (entry.expert >= 0) routed += bytes;
  }
  const size_t rest = PartBytes(config, ops, {}, stored) - routed;
  for (const int groups : {2, 3, 8}) {
    size_t sum = 0;
    for (int rank = 0; rank < groups; ++rank) {
      const Shard shard{.layout = {.data = groups, .experts = true}, .data_rank = rank};
      const Share experts = shard.Experts(config.n_routed_experts);
      const size_t bytes = PartBytes(config, ops, shard, stored);
      EXPECT_EQ(bytes, rest + routed / 64 * static_cast<size_t>(experts.size()));
      sum += bytes;
    }
    EXPECT_EQ(sum, routed + static_cast<size_t>(groups) * rest);
  }
}

// Groups that cut experts between them have a part of each, in scale tiles, and the rest as groups
// that do not.
TEST(Shard, PartsOfGroupsThatCutExperts) {
  const ParallelLayout layout{.tensor = 2, .data = 2};
  int64_t end = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Shard shard = Shard::OfRank(layout, rank, {});
    const Share part = shard.OfExpert(1408);  // 11 tiles
    EXPECT_EQ(part.begin, end);
    EXPECT_EQ(part.size(), rank < 3 ? 3 * 128 : 2 * 128);
    EXPECT_EQ(shard.Of(1408).size(), rank % 2 == 0 ? 6 * 128 : 5 * 128);
    EXPECT_EQ(shard.Experts(64), (Share{0, 64}));
    end = part.end;
  }
  EXPECT_EQ(end, 1408);
  const Shard whole = Shard::OfRank({.tensor = 2, .data = 2, .experts = true}, 3, {});
  EXPECT_EQ(whole.OfExpert(1408), (Share{0, 1408}));
}

}  // namespace
}  // namespace fathom
