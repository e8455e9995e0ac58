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
  EXPECT_NE(Refused(v3, {.data = 2}).find("or take --tensor-parallel-size 2"), std::string::npos);
  EXPECT_NE(Refused(v3, {.tensor = 4, .data = 65, .experts = true}).find("at most 64 would do"),
            std::string::npos);
  EXPECT_NE(Refused(v3, {.tensor = 3}).find("1, 2, 4, 8, 16"), std::string::npos);
  v3.n_routed_experts = 0;
  EXPECT_NE(Refused(v3, {.experts = true}).find("has no experts"), std::string::npos);
}

// Each routed expert is one rank's, and all else every group's.
TEST(Shard, PartsOfExpertParallelRanks) {
  ModelConfig config = PresetConfig("v2-lite").value();
  config.num_layers = 3;
  const Ops& ops = ReferenceOps(Fp8Activations::kExact);
  const auto stored = [&](const SchemaEntry& entry) { return PublishedBytes(entry, config); };
  size_t routed = 0;
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    if (entry.expert >= 0) routed += stored(entry);
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

}  // namespace
}  // namespace fathom
