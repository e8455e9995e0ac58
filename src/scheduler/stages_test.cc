// Pipeline stages, each of which works on another step.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "scheduler/scheduler_harness.h"

namespace fathom {
namespace {

SchedulerOptions Stages(int32_t stages) {
  SchedulerOptions options = SmallOptions();  // 4 slots, chunks of 128, 256 tokens a step
  options.stages = stages;
  options.depth = stages + 1;
  return options;
}

// Requests with rows in the next step; nothing if there is none.
std::optional<std::vector<uint64_t>> NextIds(SchedulerHarness& harness) {
  const StepPlans plans = harness.PlanGroups();
  if (plans.empty()) return std::nullopt;
  std::vector<uint64_t> ids;
  for (const StepRow& row : plans.Rows()) ids.push_back(Raw(row.request));
  std::sort(ids.begin(), ids.end());
  return ids;
}
using Ids = std::vector<uint64_t>;

TEST(SchedulerStages, WhoDecodesIsDealtOverTheSteps) {
  SchedulerHarness harness(Stages(2));
  for (uint64_t id = 1; id <= 4; ++id) harness.Add(id, 10, 20);
  EXPECT_EQ(NextIds(harness), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(NextIds(harness), Ids{}) << "what they drew is not known yet";
  EXPECT_EQ(NextIds(harness), (Ids{1, 2}));
  EXPECT_EQ(NextIds(harness), (Ids{3, 4}));
  for (int i = 0; i < 4; ++i) {
    harness.Apply();
    EXPECT_EQ(NextIds(harness), i % 2 == 0 ? (Ids{1, 2}) : (Ids{3, 4}));
  }
  harness.RunToTheEnd();
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(harness.tokens[id].size(), 20u) << id;
}

TEST(SchedulerStages, ChunksOfAPromptFollowEachOther) {
  SchedulerHarness harness(Stages(2));
  harness.Add(1, 300, 5);
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{0, 128}}));
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{128, 128}}));
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{256, 44}}));
  harness.RunToTheEnd();
}

TEST(SchedulerStages, StepsWithoutRowsMoveTheOthersOnAndHaveNumbers) {
  SchedulerHarness harness(Stages(3));
  harness.Add(1, 10, 2);
  EXPECT_EQ(NextIds(harness), Ids{1});
  EXPECT_EQ(NextIds(harness), Ids{});
  EXPECT_EQ(NextIds(harness), Ids{});
  EXPECT_EQ(harness.PlanGroups().step(), 3u);  // its second and last token
  EXPECT_EQ(NextIds(harness), Ids{});
  EXPECT_EQ(NextIds(harness), Ids{});
  EXPECT_EQ(NextIds(harness), std::nullopt) << "all have the last stage before them";
  EXPECT_EQ(harness.in_flight.size(), 2u) << "what has no rows is not applied";
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1].size(), 2u);
  EXPECT_EQ(NextIds(harness), std::nullopt);
}

TEST(SchedulerStages, NeedMoreStepsInFlightThanThereAreStages) {
  SchedulerOptions options = Stages(3);
  options.depth = 3;
  EXPECT_FALSE(Validate(options).ok());
}

}  // namespace
}  // namespace fathom
