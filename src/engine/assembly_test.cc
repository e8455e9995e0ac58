#include "engine/assembly.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>

#include "checkpoint/presets.h"
#include "cpu/cpu_device.h"
#include "engine/recorded_sizes.h"

namespace fathom {
namespace {

class AssemblyTest : public ::testing::Test {
 protected:
  Result<AssembledEngine> Assemble(EngineLimits limits) {
    limits.FillDefaults(/*gpu=*/false);
    return AssembleEngine(checkpoint_, CpuOps(Fp8Activations::kExact), {{{&device_, {}}}},
                          {.limits = limits},
                          /*progress=*/nullptr, [this](std::vector<RequestOutput> outputs) {
                            std::lock_guard lock(mutex_);
                            for (const RequestOutput& output : outputs) {
                              tokens_ += output.tokens.size();
                              ended_ = ended_ || output.finish.has_value();
                            }
                            changed_.notify_one();
                          });
  }
  std::string Refused(const EngineLimits& limits) {
    return std::string(Assemble(limits).status().message());
  }
  void ExpectPlanned(const EngineLimits& limits);

  Checkpoint checkpoint_ = Checkpoint::Open("models/tiny-r1").value();
  CpuDevice device_{1};
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t tokens_ = 0;   // guarded by mutex_
  bool ended_ = false;  // guarded by mutex_
};

TEST_F(AssemblyTest, AnEngineAnswers) {
  Result<AssembledEngine> assembled = Assemble({.max_model_len = 100, .max_num_seqs = 2});
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Engine& engine = *assembled->engine;
  EXPECT_EQ(engine.max_model_len(), 100);
  EXPECT_EQ(engine.Stats().total_pages, 2 * 2);
  engine.Start();
  ASSERT_TRUE(engine.Submit({{.prompt = {TokenId{5}}, .max_tokens = 3}, RequestId{1}}).ok());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  EXPECT_EQ(tokens_, 3u);
}

// The same answer, from rows that have room for drafts.
TEST_F(AssemblyTest, RoomForDrafts) {
  Result<AssembledEngine> assembled =
      Assemble({.max_model_len = 100,
                .max_num_seqs = 2,
                .speculation = {.method = Speculation::Method::kNgram,
                                .num_tokens = 3,
                                .lookup_min = 1,
                                .lookup_max = 2}});
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  EXPECT_EQ(assembled->models[0]->options().max_drafts, 3);
  EXPECT_EQ(assembled->models[0]->options().max_logit_vectors, 2 * 4);
  assembled->engine->Start();
  ASSERT_TRUE(
      assembled->engine->Submit({{.prompt = {TokenId{5}}, .max_tokens = 3}, RequestId{1}}).ok());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
  EXPECT_EQ(tokens_, 3u);
}

TEST_F(AssemblyTest, TheModelsOwnLengthUnlessLess) {
  EXPECT_EQ(Assemble({.max_num_seqs = 1})->engine->max_model_len(), 4096);
  EXPECT_NE(Refused({.max_model_len = 5000}).find("made for 4096 positions"), std::string::npos);
}

TEST_F(AssemblyTest, WhatCannotBeIsRefusedBeforeLoading) {
  EXPECT_NE(Refused({.max_num_seqs = 1, .kv_cache_bytes = 1 << 20}).find("fewer than one request"),
            std::string::npos);
  EXPECT_NE(Refused({.max_num_seqs = 8, .max_num_batched_tokens = 4}).find("--max-num-seqs"),
            std::string::npos);
  const size_t least = 6 * ((size_t{16} << 20) + 4096 * 1024);
  EXPECT_NE(
      Refused({.max_num_seqs = 1, .grammar_memory_bytes = least - 1}).find("125829120 at least"),
      std::string::npos);
  EXPECT_TRUE(Assemble({.max_num_seqs = 1, .grammar_memory_bytes = least}).ok());
}

TEST(EngineLimits, WhatIsGivenStays) {
  EngineLimits limits{.max_num_batched_tokens = 16};
  limits.FillDefaults(/*gpu=*/true);
  EXPECT_EQ(limits.max_num_seqs, 16);
  EXPECT_EQ(limits.max_num_batched_tokens, 16);
  EXPECT_EQ(limits.prefill_chunk, 16);
  EngineLimits long_chunk{.prefill_chunk = 4096};
  long_chunk.FillDefaults(/*gpu=*/false);
  EXPECT_EQ(long_chunk.max_num_seqs, 32);
  EXPECT_EQ(long_chunk.max_num_batched_tokens, 4096);
}

// How many steps a GPU will record stands in the plan before they are; a CPU records none.
TEST(EngineNeeds, SayHowManyStepsAreToBeRecorded) {
  const auto config = PresetConfig("v3").value();
  const auto recorded = [&](std::string_view table, int32_t drafts, bool records) {
    Ops ops = CpuOps(Fp8Activations::kExact);
    ops.name = table;
    EngineLimits limits{.max_model_len = 1024};
    if (drafts > 0)
      limits.speculation = {.method = Speculation::Method::kMtp, .num_tokens = drafts};
    limits.FillDefaults(/*gpu=*/true);
    const MemoryNeeds needs =
        NeedsAhead(config, ops, {}, {.limits = limits}, {.weights = 1, .records = records});
    return std::pair(needs.recorded_steps, needs.items.back().remark);
  };
  const auto sizes = [](int64_t drafts) {
    return static_cast<int64_t>(
        RecordedSizes({.max_tokens = 8192, .max_rows = 256, .max_drafts = drafts}).size());
  };
  EXPECT_EQ(recorded("cuda", 0, true),
            std::pair(sizes(0), fmt::format("{} steps to record", sizes(0))));
  EXPECT_EQ(recorded("cuda", 3, true).first, sizes(3));
  EXPECT_EQ(recorded("cuda", 3, false), std::pair(int64_t{0}, std::string()));
  EXPECT_EQ(recorded("cpu", 3, true), std::pair(int64_t{0}, std::string()));
}

TEST(EngineNeeds, SayWhichFlagLowersThem) {
  std::string text;
  for (const MemoryNeed& need : EngineNeeds({.weights = 1, .pairs = 1, .peers = 1}, /*gpu=*/true)) {
    text += need.name + " (" + need.lowered_by + "); ";
  }
  EXPECT_EQ(text,
            "weights (); activations (--max-num-batched-tokens); work space "
            "(--max-num-batched-tokens); request state (--max-num-seqs); logits "
            "(--max-num-seqs); exchange of experts' tokens (--max-num-batched-tokens); memory that "
            "ranks share (); kernels and recorded steps (); ");
  const auto on_cpu = EngineNeeds({.requests = 1000, .grammars = 2000}, /*gpu=*/false);
  EXPECT_EQ(on_cpu.back().bytes, 2000u);
  EXPECT_EQ(on_cpu.back().lowered_by, "--max-grammar-memory-bytes");
  EXPECT_EQ(on_cpu[on_cpu.size() - 2].bytes, 1000u);
  EXPECT_EQ(on_cpu[on_cpu.size() - 2].lowered_by, "--max-request-memory-bytes");
}

// The plan before anything is read is that of what was loaded, but for work space. The draft layer
// is a part of it only if it proposes.
TEST_F(AssemblyTest, WhatIsPlannedAheadIsWhatIsTaken) {
  EngineLimits limits = {
      .max_model_len = 512, .max_num_seqs = 4, .max_num_batched_tokens = 128, .prefill_chunk = 128};
  limits.grammar_memory_bytes = size_t{120} << 20;
  limits.speculation = {.method = Speculation::Method::kMtp, .num_tokens = 2};
  ExpectPlanned(limits);
  limits.speculation = {};
  EXPECT_EQ(checkpoint_.config().num_mtp_layers, 1);
  checkpoint_.LeaveOutMtp();
  ExpectPlanned(limits);
  limits.speculation = {.method = Speculation::Method::kMtp, .num_tokens = 2};
  EXPECT_NE(Refused(limits).find("needs a model with one layer for it"), std::string::npos);
}

void AssemblyTest::ExpectPlanned(const EngineLimits& limits) {
  const Ops& ops = CpuOps(Fp8Activations::kExact);
  const ModelConfig& config = checkpoint_.config();
  const size_t weights = PartBytes(config, ops, {}, PublishedSizes(config));
  const MemoryNeeds needs = NeedsAhead(config, ops, {}, {.limits = limits}, {.weights = weights});
  const Result<AssembledEngine> assembled = Assemble(limits);
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  const Model& model = *assembled->models[0];
  const auto planned = [&](std::string_view name) {
    for (const MemoryNeed& need : needs.items) {
      if (need.name == name) return static_cast<double>(need.bytes.value());
    }
    return -1.0;
  };
  EXPECT_EQ(planned("activations"), static_cast<double>(model.activation_bytes()));
  EXPECT_EQ(planned("grammars"), 120.0 * (1 << 20));
  // Panels of the CPU's products are filled up.
  EXPECT_NEAR(planned("weights"), static_cast<double>(model.weight_bytes()),
              0.02 * static_cast<double>(model.weight_bytes()));
}

// What was recorded stands beside what is kept for it, and more than that is said.
TEST(EngineNeeds, WhatWasRecordedIsHeldAgainstWhatIsKept) {
  std::vector<StepTime> times;
  const auto taken = [&](int64_t bytes, std::string& plan_text) {
    MemoryPlan plan{.needs = {.items = EngineNeeds({.weights = 1}, /*gpu=*/true), .page_bytes = 1}};
    const std::string excess = TakeRecorded(
        {.steps = 21, .bytes = bytes, .seconds = 2.5, .times = times, .timing_seconds = 0.21},
        plan);
    plan_text = plan.ToString();
    return std::pair(excess, plan.needs.item_bytes() - 1);
  };
  std::string plan;
  EXPECT_EQ(taken(int64_t{1} << 29, plan), std::pair(std::string(), int64_t{1} << 30));
  EXPECT_TRUE(
      plan.ends_with("kernels and recorded steps 1.00 GiB (21 steps recorded in 2.5 s, "
                     "which took 0.50)"))
      << plan;
  times = {{.decodes = 1, .drafts = 0, .seconds = 1}};
  const auto [excess, bytes] = taken(int64_t{3} << 29, plan);
  EXPECT_TRUE(
      excess.starts_with("21 recorded steps and their kernels took 1.50 GiB, and the "
                         "memory plan keeps 1.00 for them"))
      << excess;
  EXPECT_EQ(bytes, int64_t{3} << 29);
  EXPECT_TRUE(
      plan.ends_with("kernels and recorded steps 1.50 GiB (21 steps recorded in 2.5 s, "
                     "which took 1.50, and timed in 0.2 s)"))
      << plan;
}

}  // namespace
}  // namespace fathom
