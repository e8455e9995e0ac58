#include "layout_plan.h"

#include <gtest/gtest.h>

#include <array>

#include "checkpoint/presets.h"
#include "ops/cuda_properties.h"
#include "parallel/peer_view.h"

namespace fathom {
namespace {

constexpr int64_t kH200 = 149'570'000'000;

AssemblyOptions OnGpu(int32_t max_model_len = 32768) {
  AssemblyOptions options{.limits = {.max_model_len = max_model_len}};
  options.limits.FillDefaults(/*gpu=*/true);
  return options;
}

Result<LayoutPlan> Plan(const ModelConfig& config, const ParallelLayout& layout,
                        int gpus_each = 0) {
  const Ops ops = CudaProperties(/*hopper=*/true);
  const TensorSizes sizes = PublishedSizes(config);
  return PlanLayout({config, sizes, ops}, layout, OnGpu(), {kH200, gpus_each});
}

size_t Item(const RankPlan& rank, std::string_view name) {
  for (const MemoryNeed& need : rank.memory.needs.items) {
    if (need.name == name) return need.bytes.value();
  }
  ADD_FAILURE() << name;
  return 0;
}

size_t Weights(const char* preset, bool fp8, int32_t layers) {
  ModelConfig config = PresetConfig(preset).value();
  config.fp8 = fp8;
  config.num_layers = layers;
  config.num_mtp_layers = 0;
  const Result<LayoutPlan> plan = Plan(config, {});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return Item(plan->ranks[0], "weights");
}

// To the byte what loaded models had: weight_bytes of bench/results/h200/.
TEST(LayoutPlan, WeightsAreThoseThatWereMeasured) {
  EXPECT_EQ(Weights("v3", true, 5), 28'649'502'816u);
  EXPECT_EQ(Weights("v2-lite", true, 27), 16'246'680'384u);
  EXPECT_EQ(Weights("v2-lite", false, 27), 31'526'467'584u);
}

// Of cut weights each rank has its part, and all have the replicated ones.
TEST(LayoutPlan, PartsOfRanksAddUpToTheWhole) {
  ModelConfig config = PresetConfig("v3").value();
  config.num_layers = 4;
  config.num_mtp_layers = 0;
  const double whole = static_cast<double>(Item(Plan(config, {})->ranks[0], "weights"));
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.tensor = 8},
        ParallelLayout{.data = 4, .experts = true}, ParallelLayout{.tensor = 4, .experts = true},
        ParallelLayout{.data = 4}}) {
    const Result<LayoutPlan> plan = Plan(config, layout);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_EQ(plan->ranks.size(), static_cast<size_t>(layout.world()));
    double cut = 0;
    for (const RankPlan& rank : plan->ranks) {
      cut += static_cast<double>(Item(rank, "weights") - rank.replicated_bytes);
      EXPECT_EQ(rank.replicated_bytes, plan->ranks[0].replicated_bytes);
      EXPECT_EQ(Item(rank, "memory that ranks share") > 0, true);
    }
    EXPECT_NEAR(cut + static_cast<double>(plan->ranks[0].replicated_bytes), whole, 1e-4 * whole)
        << Describe(layout);
  }
}

// Each stage has its layers alone, and their latents, so that more tokens fit.
TEST(LayoutPlan, StagesHaveTheLayersBetweenThem) {
  const ModelConfig config = PresetConfig("v2-lite").value();
  const Result<LayoutPlan> one = Plan(config, {}), two = Plan(config, {.pipeline = 2});
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_EQ(two->ranks.size(), 2u);
  size_t weights = 0;
  int64_t layers = 0;
  for (const RankPlan& rank : two->ranks) {
    weights += Item(rank, "weights");
    layers += rank.memory.needs.page_bytes;
    EXPECT_EQ(rank.replicated_bytes, 0u);
    EXPECT_LT(Item(rank, "weights"), Item(one->ranks[0], "weights") * 55 / 100);
  }
  EXPECT_EQ(weights, Item(one->ranks[0], "weights"));
  EXPECT_EQ(layers, one->ranks[0].memory.needs.page_bytes);
  EXPECT_GT(two->group_cache_tokens(), 2 * one->group_cache_tokens());
}

// Groups have caches of their own, and ranks of a group the same latents.
TEST(LayoutPlan, TokensOfTheCacheAreThoseOfTheFullestRank) {
  const ModelConfig config = PresetConfig("v3").value();
  const Result<LayoutPlan> plan = Plan(config, {.tensor = 4, .data = 2, .experts = true});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  int64_t least = INT64_MAX;
  for (const RankPlan& rank : plan->ranks) {
    least = std::min(least, rank.memory.num_pages * kPageTokens);
    const int64_t used = rank.memory.total_bytes();
    EXPECT_LE(used, kH200 / 10 * 9);
    EXPECT_GT(used, kH200 / 10 * 9 - rank.memory.needs.page_bytes);
  }
  EXPECT_EQ(plan->group_cache_tokens(), least);
}

// Two hosts of four GPUs: ranks of a stage, of a group over both hosts, and of all stages.
TEST(LayoutPlan, WhoIsElsewhere) {
  const auto of = [](const ParallelLayout& layout, int rank) {
    const PeersElsewhere over = ElsewhereOf(layout, /*gpus_each=*/4, rank);
    return std::array{over.tensor, over.experts, over.before, over.after, over.stages};
  };
  using Counts = std::array<int, 5>;
  EXPECT_EQ(of({.tensor = 4, .pipeline = 2}, 0), (Counts{0, 0, 0, 1, 1}));
  EXPECT_EQ(of({.tensor = 4, .pipeline = 2}, 7), (Counts{0, 0, 1, 0, 1}));
  EXPECT_EQ(of({.tensor = 8}, 3), (Counts{4, 0, 0, 0, 0}));
  EXPECT_EQ(of({.tensor = 2, .data = 4}, 3), (Counts{0, 4, 0, 0, 0}));
  EXPECT_EQ(of({.pipeline = 8}, 2), (Counts{0, 0, 0, 0, 4}));
  EXPECT_EQ(of({.pipeline = 8}, 3), (Counts{0, 0, 0, 1, 4}));
  EXPECT_EQ(of({.pipeline = 8}, 4), (Counts{0, 0, 1, 0, 4}));
}

// What NCCL's windows take in place of a GPU's exchange with its peers, and nothing else.
TEST(LayoutPlan, ExchangesBetweenHostsHaveTheirOwnMemory) {
  const ModelConfig config = PresetConfig("v2-lite").value();
  const ParallelLayout layout = {.tensor = 2, .pipeline = 2};
  const auto plan = [&](int gpus_each) { return Plan(config, layout, gpus_each).value(); };
  constexpr size_t kPeers = sizeof(PeerExchange) + sizeof(PeerCounters);
  const LayoutPlan one = plan(4), two = plan(2), four = plan(1);
  EXPECT_EQ(Item(one.ranks[0], "memory that ranks share"), 3 * kPeers);
  EXPECT_EQ(Item(two.ranks[0], "memory that ranks share"), kPeers + 2 * WindowsBytes(2));
  EXPECT_EQ(Item(four.ranks[0], "memory that ranks share"), 3 * WindowsBytes(2));
  EXPECT_EQ(Item(one.ranks[0], "weights"), Item(four.ranks[0], "weights"));
}

TEST(LayoutPlan, WhatStartUpRefusesIsRefused) {
  const ModelConfig v3 = PresetConfig("v3").value();
  EXPECT_NE(Plan(v3, {.tensor = 4}).status().message().find("GiB are needed"), std::string::npos);
  EXPECT_NE(Plan(v3, {.tensor = 3}).status().message().find("1, 2, 4, 8, 16"), std::string::npos);
  EXPECT_NE(Plan(v3, {.tensor = 16}).status().message().find("ops take at most 8"),
            std::string::npos);
}

TEST(LayoutPlan, AllLayouts) {
  const auto names = [](int gpus, bool has_experts) {
    std::vector<std::string> names;
    for (const ParallelLayout& layout : LayoutsOf(gpus, has_experts)) {
      names.push_back(Describe(layout));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(1, true), Names{"one GPU"});
  EXPECT_EQ(names(4, true),
            (Names{"tp 4", "tp 4 + ep", "tp 2 x dp 2", "tp 2 x dp 2 + ep", "dp 4", "dp 4 + ep",
                   "pp 2 x tp 2", "pp 2 x tp 2 + ep", "pp 2 x dp 2", "pp 2 x dp 2 + ep", "pp 4"}));
  EXPECT_EQ(names(2, false), (Names{"tp 2", "dp 2", "pp 2"}));
  EXPECT_EQ(names(3, true), (Names{"tp 3", "tp 3 + ep", "dp 3", "dp 3 + ep", "pp 3"}));
}

}  // namespace
}  // namespace fathom
