#include "step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/presets.h"
#include "model/kv_pool.h"
#include "ops/cuda_properties.h"
#include "parallel/peer_view.h"
#include "step_work.h"

namespace fathom {
namespace {

// Round figures, so that each part can be added up by hand.
GpuFigures RoundFigures() {
  return {.name = "round",
          .hopper = true,
          .memory_bytes = 1e11,
          .read_bytes_per_s = 1e12,
          .bf16_operations_per_s = 1e15,
          .fp8_operations_per_s = 2e15,
          .peer_bytes_per_s = 1e11,
          .launch_s = 1e-6,
          .small_all_reduce_s = 2e-6,
          .small_all_reduce_s_per_peer = 4e-6,
          .small_all_reduce_s_per_byte = 1e-11,
          .barrier_s = 3e-6,
          .product_read_share = 1,
          .expert_read_share = 1,
          .cache_read_share = 1,
          .bf16_product_share = 1,
          .fp8_product_share = 1,
          .expert_product_share = 1,
          .absorbed_share = 1,
          .expanded_share = 1,
          .logit_reads = 1};
}

class StepTimeTest : public ::testing::Test {
 protected:
  std::vector<StepPart> Parts(const ParallelLayout& layout, const PlannedStep& step) {
    return PartsOfStep({planned_, kv_, gpu_, layout}, step);
  }
  static StepPart Of(const std::vector<StepPart>& parts, std::string_view name) {
    for (const StepPart& part : parts) {
      if (part.name == name) return part;
    }
    return {};
  }
  double Bytes(const std::vector<StepPart>& parts) {
    double bytes = 0;
    for (const char* name : {"attention's products", "dense MLPs", "head"}) {
      bytes += Of(parts, name).bytes;
    }
    return bytes;
  }

  ModelConfig config_ = PresetConfig("v3").value();
  Ops ops_ = CudaProperties(/*hopper=*/true);
  TensorSizes sizes_ = PublishedSizes(config_);
  PlannedModel planned_ = {config_, sizes_, ops_};
  KvFormat kv_ = MakeKvFormat(config_, DType::kBF16);
  GpuFigures gpu_ = RoundFigures();
};

// What `bench offline` calls the least that a step computes is what is predicted from.
TEST_F(StepTimeTest, OperationsAreThoseOfTheBench) {
  const PlannedStep step = {.rows = 8, .context = 1000};
  double operations = 0;
  for (const StepPart& part : Parts({}, step)) operations += part.operations;
  const StepWork work = WorkOf({.rows = 8, .context = 1000, .absorbed = true}, config_, {}, kv_);
  const double routers = 2.0 * config_.n_routed_experts * config_.hidden_size * 8 * 58;
  EXPECT_NEAR(operations, work.operations - routers, 1e-9 * operations);
}

// 61 layers of 7168 numbers in BF16 for one token, twice a layer, to one peer.
TEST_F(StepTimeTest, ASmallAllReduceCostsItsLatencyAndItsBytes) {
  const StepPart small = Of(Parts({.tensor = 2}, {}), "all-reduce");
  EXPECT_DOUBLE_EQ(small.peer_bytes, 61 * 2 * 7168 * 2.0);
  EXPECT_NEAR(small.seconds, 61 * 2 * (2e-6 + 14336 * 1e-11), 1e-12);
  EXPECT_EQ(Of(Parts({}, {}), "all-reduce").seconds, 0);
  EXPECT_NEAR(Of(Parts({.tensor = 4}, {}), "all-reduce").seconds,
              61 * 2 * (2e-6 + 2 * 4e-6 + 3 * 14336 * 1e-11), 1e-12);
  // Of 1,835,008 bytes: half of them are moved to their owners and back, twice.
  const StepPart large = Of(Parts({.tensor = 2}, {.rows = 128}), "all-reduce");
  EXPECT_NEAR(large.seconds, 61 * 2 * (4 * 3e-6 + 2 * 1'835'008 / 1e11), 1e-9);
}

// A dense layer of one token is read: 3 x 7168 x 18432 weights of a byte and a scale per tile.
TEST_F(StepTimeTest, ProductsTakeTheirBytesOrTheirOperations) {
  const double weights = 3.0 * 3 * 7168 * 18432, width = 1 + 4.0 / (128 * 128);
  EXPECT_NEAR(Of(Parts({}, {}), "dense MLPs").seconds, weights * width / 1e12 + 3 * 2e-6, 1e-9);
  EXPECT_NEAR(Of(Parts({}, {.rows = 1, .tokens = 8192, .absorbed = false}), "dense MLPs").seconds,
              2 * weights * 8192 / 2e15 + 3 * 2e-6, 1e-6);
  EXPECT_NEAR(Of(Parts({.tensor = 4}, {}), "dense MLPs").bytes, weights * width / 4, 1);
}

// Of a group whose experts lie over ranks each has its share of what all groups draw, whole.
TEST_F(StepTimeTest, ExpertsOverRanks) {
  const double expert = 3.0 * 7168 * 2048 * (1 + 4.0 / (128 * 128));
  const PlannedStep step = {.rows = 4, .groups = 2, .experts = 64};
  const StepPart part = Of(Parts({.data = 2, .experts = true}, step), "experts");
  const double pairs = 8 * 8 / 2 + 4, passes = 7168.0 * (4 * 4 + 3 * pairs);
  EXPECT_NEAR(part.bytes, 58 * ((64 / 2 + 1) * expert + passes), 1);
  EXPECT_NEAR(part.operations, 58 * 6.0 * 7168 * 2048 * pairs, 1);
  const StepPart exchange =
      Of(Parts({.data = 2, .experts = true}, step), "exchange of experts' tokens");
  EXPECT_NEAR(exchange.peer_bytes, 58 * (4 * 7168 * 2.0 + 4 * 8 * 7168 * 2.0 / 2), 1);
}

// Of groups that cut experts between them each rank has a part of all that any of them draws, for
// all tokens: these go to the other rank, and its sums come back.
TEST_F(StepTimeTest, ExpertsThatGroupsCut) {
  const double expert = 3.0 * 7168 * 1024 * (1 + 4.0 / (128 * 128));
  const PlannedStep step = {.rows = 4, .groups = 2, .experts = 64};
  const StepPart part = Of(Parts({.data = 2}, step), "experts");
  const double pairs = 8 * 9, passes = 7168.0 * (8 * 4 + 3 * pairs);
  EXPECT_NEAR(part.bytes, 58 * (65 * expert + passes), 1);
  EXPECT_NEAR(part.operations, 58 * 6.0 * 7168 * 1024 * pairs, 1);
  EXPECT_NEAR(Of(Parts({.data = 2}, step), "exchange of experts' tokens").peer_bytes,
              58 * 2 * 4 * 7168 * 2.0, 1);
}

TEST_F(StepTimeTest, CutMatricesAreReadOnce) {
  const double one = Bytes(Parts({}, {})), four = Bytes(Parts({.tensor = 4}, {}));
  EXPECT_GT(four, one / 4);  // latents' products are every rank's
  EXPECT_LT(four, one / 3);
}

// A prompt of two chunks is two steps, the second behind the first.
TEST_F(StepTimeTest, PromptsAreReadInChunks) {
  const StepTimeModel model = {planned_, kv_, gpu_, {}};
  const PlannedStep first = {.tokens = 4096, .absorbed = false};
  PlannedStep second = first;
  second.context = 4096;
  EXPECT_DOUBLE_EQ(PrefillSeconds(model, 8192, 4096),
                   Seconds(PartsOfStep(model, first)) + Seconds(PartsOfStep(model, second)));
  EXPECT_GT(Seconds(PartsOfStep(model, second)), Seconds(PartsOfStep(model, first)));
}

// One row goes through the stages alone: the same work as on one device, and what it is handed on
// by. Of two rows each stage has one at a time, and each waits for the slower stage.
TEST_F(StepTimeTest, StagesWorkAtTheSameTime) {
  const std::vector<StepPart> one = Parts({}, {}), alone = Parts({.pipeline = 2}, {});
  const char* kHandedOn = "handing on to the next stage";
  EXPECT_DOUBLE_EQ(Of(alone, kHandedOn).peer_bytes, 7168 * 4.0);
  const std::vector<StepPart> rounded = Parts({.pipeline = 2, .bf16_residual = true}, {});
  EXPECT_DOUBLE_EQ(Of(rounded, kHandedOn).peer_bytes, 7168 * 2.0);
  const double handed =
      Of(alone, kHandedOn).seconds + Of(alone, "drawn tokens to all stages").seconds;
  EXPECT_NEAR(Seconds(alone), Seconds(one) + handed, 1e-9);
  const std::vector<StepPart> two = Parts({.pipeline = 2}, {.rows = 2});
  const double waits = Of(two, "waiting for other stages").seconds;
  EXPECT_GT(waits, 0);
  EXPECT_NEAR(Seconds(two), Seconds(alone) + waits, 1e-9);
  EXPECT_LT(Seconds(two), 1.2 * Seconds(alone)) << "stages have equal bytes";
  // Two chunks of a prompt take three turns, of which only the middle one has both stages at work.
  const StepTimeModel both = {planned_, kv_, gpu_, {.pipeline = 2}};
  const StepTimeModel whole = {planned_, kv_, gpu_, {}};
  const double share = PrefillSeconds(both, 8192, 4096) / PrefillSeconds(whole, 8192, 4096);
  EXPECT_GT(share, 0.7);
  EXPECT_LT(share, 0.85);
}

TEST(GpuFigures, StoredOnesAreWholeAndOthersAreRefused) {
  const Result<GpuFigures> h200 = GpuType("h200");
  ASSERT_TRUE(h200.ok()) << h200.status().message();
  EXPECT_TRUE(h200->hopper);
  EXPECT_EQ(GpuType("b200").status().message(), "no GPU type b200: there is h200");
  EXPECT_EQ(ParseGpuFigures("[").status().message(), "not a JSON object");
  EXPECT_EQ(ParseGpuFigures(R"({"name": "x", "hopper": true})").status().message(),
            "\"figures\" is missing");
  EXPECT_EQ(ParseGpuFigures(R"({"name": "x", "hopper": true, "figures": {"memory_bytes": 1}})")
                .status()
                .message(),
            "figures: memory_bytes needs a \"value\" from 1e-18 to 1e+18");
  EXPECT_EQ(
      ParseGpuFigures(R"({"name": "x", "hopper": true, "figures": {"memory_bytes": {"value": 1}}})")
          .status()
          .message(),
      "figures: memory_bytes needs the \"command\" that measured it");
}

// Round figures: what crosses takes the network's time, and what does not what it took.
TEST_F(StepTimeTest, WhatGoesToOtherHostsIsPricedByTheNetwork) {
  const auto parts = [&](const ParallelLayout& layout, int gpus_each, const PlannedStep& step) {
    return PartsOfStep({planned_, kv_, gpu_, layout, gpus_each, {1e9, 1e-3}}, step);
  };
  const double hidden = config_.hidden_size;
  // A stage on each host: the residual of 4 bytes a number goes over once, and drawn tokens.
  const ParallelLayout stages = {.tensor = 4, .pipeline = 2};
  const auto here = parts(stages, 8, {}), there = parts(stages, 4, {});
  const StepPart handed = Of(there, "handing on to the next stage");
  EXPECT_DOUBLE_EQ(handed.network_bytes, 4 * hidden);
  EXPECT_DOUBLE_EQ(handed.seconds, 1e-3 + 4 * hidden / 1e9);
  EXPECT_DOUBLE_EQ(Of(there, "drawn tokens to all stages").seconds, 2 * (1e-3 + 4 / 1e9));
  EXPECT_EQ(Of(there, "all-reduce").network_bytes, 0);
  EXPECT_EQ(Of(there, "all-reduce").seconds, Of(here, "all-reduce").seconds);
  for (const StepPart& part : here) EXPECT_EQ(part.network_bytes, 0) << part.name;
  EXPECT_EQ(Seconds(here), Seconds(Parts(stages, {})));
  // A group over both hosts: of each of two norms a layer, 4 of 7 peers are elsewhere.
  const ParallelLayout group = {.tensor = 8};
  const StepPart small = Of(parts(group, 4, {}), "all-reduce");
  const double norms = 2.0 * config_.num_layers;
  EXPECT_DOUBLE_EQ(small.network_bytes, norms * 4 * 2 * hidden);
  EXPECT_NEAR(small.seconds, norms * (1e-3 + 4 * 2 * hidden / 1e9), 1e-9);
  // Large messages: parts to their owners, and what these normed to all, in rounds of 16 MB.
  const double bytes = 4096 * 2 * hidden, rounds = std::ceil(bytes / kWindowBytes);
  const StepPart large = Of(parts(group, 4, {.tokens = 4096, .absorbed = false}), "all-reduce");
  EXPECT_DOUBLE_EQ(large.network_bytes, norms * 2 * bytes * 4 / 8);
  EXPECT_NEAR(large.seconds, norms * (2 * rounds * 1e-3 + bytes / 1e9), 1e-6);
  // Experts' tokens: half of a token's peers, and what comes back of its eight experts.
  const ParallelLayout groups = {.data = 8, .experts = true};
  const StepPart pairs =
      Of(parts(groups, 4, {.rows = 16, .groups = 8}), "exchange of experts' tokens");
  const double moe = config_.num_layers - 3.0;
  EXPECT_NEAR(pairs.network_bytes, moe * 16 * 2 * hidden * (4 + 8 * 4 / 8.0), 1);
  EXPECT_GT(pairs.seconds, moe * (2e-3 + 16 * 2 * hidden * 8 / 1e9));
}

}  // namespace
}  // namespace fathom
