#include "engine/timed_decodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/load_models.h"
#include "engine/model_executor.h"
#include "engine/rank_executors.h"
#include "engine/test_recording_cpu.h"
#include "model/model.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

constexpr int32_t kSlots = 6, kDrafts = 3;

// The live rows of each step, and the least tokens of one; of one run at a time.
std::vector<std::pair<int32_t, int32_t>> steps;
const Ops* right = nullptr;

void CountAndVerify(OpContext& context, const VerifyDraftsArgs& a) {
  const int32_t rows = *a.live_rows.As<int32_t>(), *begin = a.logit_begin.As<int32_t>();
  int32_t tokens = rows == 0 ? 0 : INT32_MAX;
  for (int32_t r = 0; r < rows; ++r) tokens = std::min(tokens, begin[r + 1] - begin[r]);
  steps.emplace_back(rows, tokens);
  right->verify_drafts.run(context, a);
}

struct Timing {
  std::vector<StepTime> times;
  std::vector<std::pair<int32_t, int32_t>> live;  // of the steps with live rows
};

Timing Time(ModelOptions model_options, int64_t pages, bool records = true) {
  right = &CpuOps(Fp8Activations::kExact);
  Ops ops = *right;
  ops.verify_drafts.run = CountAndVerify;
  steps.clear();
  RecordingCpu recording(2);
  CpuDevice plain(2);
  Device& device = records ? static_cast<Device&>(recording) : plain;
  model_options.max_tokens = 64;
  model_options.max_rows = kSlots;
  model_options.max_logit_vectors = kSlots * (1 + kDrafts);
  model_options.max_drafts = kDrafts;
  const auto model =
      Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops, device, model_options, nullptr)
          .value();
  const ModelExecutor executor(*model, device,
                               {.num_pages = pages, .slots = kSlots, .time_steps = true});
  Timing timing{.times = executor.recorded().times};
  std::ranges::copy_if(steps, std::back_inserter(timing.live), [](auto s) { return s.first > 0; });
  return timing;
}

// Whoever proposes, or proposes nothing: every token of what is timed is live.
TEST(TimedDecodes, AreStepsOfEachSizeWithEachNumberOfDraftsWhoseTokensAreAllLive) {
  const ModelOptions by_layer{.mtp = true, .max_model_len = 100},
      by_ngrams{.ngram = NgramLookup{.least = 5, .most = 5}, .max_model_len = 64};
  for (const ModelOptions& options : {by_layer, by_ngrams}) {
    const Timing timing = Time(options, /*pages=*/kSlots);
    size_t step = 0, time = 0;
    for (const int32_t decodes : {1, 2, 3, 4, 6}) {
      for (int32_t drafts = 0; drafts <= kDrafts; ++drafts, ++time) {
        for (int i = 0; i < 3; ++i, ++step) {
          ASSERT_LT(step, timing.live.size());
          EXPECT_EQ(timing.live[step], std::pair(decodes, 1 + drafts));
        }
        ASSERT_LT(time, timing.times.size());
        EXPECT_EQ(timing.times[time].decodes, decodes);
        EXPECT_EQ(timing.times[time].drafts, drafts);
        EXPECT_GT(timing.times[time].seconds, 0);
      }
    }
    EXPECT_EQ(step, timing.live.size());
    EXPECT_EQ(time, timing.times.size());
  }
}

TEST(TimedDecodes, AreAsManyAsThereAreSlotsAndPagesFor) {
  const Timing few = Time({.mtp = true, .max_model_len = 128}, /*pages=*/2);
  EXPECT_EQ(few.times.back().decodes, 2);
  // A request has not even a page, or no step is recorded: served steps are timed alone.
  EXPECT_TRUE(Time({.mtp = true, .max_model_len = 63}, kSlots).times.empty());
  EXPECT_TRUE(Time({.mtp = true, .max_model_len = 128}, kSlots, /*records=*/false).live.empty());
}

// Ranks wait for each other in each step: all of them come to the same ones, and to their end.
TEST(TimedDecodes, AreTheSameOfAllRanks) {
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.data = 2, .experts = true},
        ParallelLayout{.pipeline = 2}}) {
    const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
    JoinedRanks joined = JoinedRanks::Join(layout, SharedMemoryCommunicator::GroupOf).value();
    std::vector<std::unique_ptr<RecordingCpu>> devices;
    std::vector<EngineRank> ranks;
    for (int rank = 0; rank < layout.world(); ++rank) {
      devices.push_back(std::make_unique<RecordingCpu>(1));
      ranks.push_back(
          {devices.back().get(), Shard::OfRank(layout, rank, joined.Of(rank)), /*peer_bytes=*/0});
    }
    const ModelOptions options{.max_tokens = 64,
                               .max_rows = kSlots,
                               .max_drafts = kDrafts,
                               .mtp = true,
                               .max_logit_vectors = kSlots * (1 + kDrafts),
                               .max_model_len = 128};
    const auto models =
        LoadModels(checkpoint, CpuOps(Fp8Activations::kExact), ranks, options, nullptr).value();
    const RankExecutors executors =
        MakeRankExecutors(models, ranks, {.num_pages = kSlots, .slots = kSlots, .time_steps = true},
                          nullptr)
            .value();
    for (const std::unique_ptr<Executor>& executor : executors.ranks) {
      const auto& times = dynamic_cast<const ModelExecutor&>(*executor).recorded().times;
      ASSERT_EQ(times.size(), size_t{5 * (1 + kDrafts)});
      for (size_t i = 0; i < times.size(); ++i) {
        EXPECT_EQ(times[i].decodes, executors.recorded.times[i].decodes);
        EXPECT_EQ(times[i].drafts, executors.recorded.times[i].drafts);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
