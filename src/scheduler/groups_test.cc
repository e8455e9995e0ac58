// Several data-parallel groups under one scheduler.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scheduler_harness.h"

namespace fathom {
namespace {

SchedulerOptions Groups(int32_t groups) {
  SchedulerOptions options = SmallOptions();  // of each: 4 slots, 256 tokens a step, 10 pages
  options.groups = groups;
  return options;
}

// The requests of each group's rows.
using Ids = std::vector<std::vector<uint64_t>>;
Ids IdsOf(const StepPlans& plans) {
  Ids ids;
  for (const StepPlan& part : plans.groups) {
    std::vector<uint64_t>& of = ids.emplace_back();
    for (const StepRow& row : part.rows) of.push_back(Raw(row.request));
    std::sort(of.begin(), of.end());
  }
  return ids;
}

TEST(SchedulerGroups, RequestsGoWhereMostRoomIsLeftAndElseToTheLowest) {
  SchedulerHarness harness(Groups(3));
  harness.Add(1, 120, 9);
  harness.Add(2, 20, 9);
  harness.Add(3, 60, 9);
  harness.Add(4, 30, 9);
  harness.Add(5, 30, 9);
  harness.Add(6, 30, 9);
  EXPECT_EQ(IdsOf(harness.PlanGroups()), (Ids{{1}, {2, 4, 6}, {3, 5}}));
  harness.RunToTheEnd();
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(harness.tokens[id].size(), 9u) << id;
}

TEST(SchedulerGroups, TurnsOfClientsSayWhoEntersNextAndRoomSaysWhere) {
  SchedulerHarness harness(Groups(2));
  harness.Add(1, 20, 9, /*client=*/7);
  harness.Add(2, 120, 9, /*client=*/7);
  harness.Add(3, 60, 9, /*client=*/8);  // enters before 2, and so takes the empty group
  EXPECT_EQ(IdsOf(harness.PlanGroups()), (Ids{{1, 2}, {3}}));
  harness.RunToTheEnd();
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(harness.tokens[id].size(), 9u) << id;
}

TEST(SchedulerGroups, PagesInUseCountAsTheStepsTokensDo) {
  SchedulerHarness harness(Groups(2));
  harness.Add(1, 250, 9);
  harness.Add(2, 100, 9);
  harness.PlanGroups();
  harness.PlanGroups();  // both decode: the groups differ in pages alone
  harness.Apply();
  harness.Add(3, 10, 9);
  EXPECT_EQ(IdsOf(harness.PlanGroups()), (Ids{{1}, {2, 3}}));
}

TEST(SchedulerGroups, GroupWithoutRowsHasTheStepAndItsShape) {
  SchedulerHarness harness(Groups(3));
  harness.Add(1, 20, 9);
  harness.Add(2, 7, 9);
  const StepPlans plans = harness.PlanGroups();
  EXPECT_EQ(IdsOf(plans), (Ids{{1}, {2}, {}}));
  for (const StepPlan& part : plans.groups) {
    EXPECT_EQ(part.step, 0u);
    EXPECT_EQ(part.shape, (StepShape{.rows = 1, .tokens = 20, .logit_vectors = 1, .known = true}));
  }
  harness.RunToTheEnd();
}

TEST(SchedulerGroups, NobodyHasWorkIsNoStep) {
  SchedulerHarness harness(Groups(2));
  EXPECT_TRUE(harness.PlanGroups().empty());
  harness.Add(1, 5, 1);
  EXPECT_EQ(harness.PlanGroups().step(), 0u);
  EXPECT_TRUE(harness.PlanGroups().empty());
  harness.Apply();
  harness.Add(2, 5, 1);
  EXPECT_EQ(harness.PlanGroups().step(), 1u) << "what was no step has no number";
}

// What one group has is every group's shape.
TEST(SchedulerGroups, ShapeSaysWhatMayBeRecorded) {
  SchedulerOptions options = Groups(2);
  options.absorbed_limit = 50;
  SchedulerHarness harness(options);
  const auto shape_with = [&](uint64_t id, RequestParams params) {
    harness.Add(id, std::move(params));
    const StepPlans plans = harness.PlanGroups();
    EXPECT_EQ(plans.groups[0].shape, plans.groups[1].shape);
    harness.Apply();
    return plans.groups[1].shape;
  };
  EXPECT_FALSE(shape_with(1, Params(50, 40)).eager);
  EXPECT_FALSE(shape_with(2, Params(50, 40)).eager);
  EXPECT_TRUE(shape_with(3, Params(51, 1)).eager) << "it is expanded";
  RequestParams scored = Params(9, 1);
  scored.prompt_logprobs = 0;
  EXPECT_TRUE(shape_with(4, scored).eager);
  RequestParams wants = Params(9, 1);
  EXPECT_EQ(shape_with(5, wants).logprob_vectors, 0);
  wants.sampling.logprobs = 0;
  const StepShape shape = shape_with(6, wants);  // it joins 1 or 2
  EXPECT_FALSE(shape.eager);
  EXPECT_EQ(shape.logprob_vectors, 2);
}

TEST(SchedulerGroups, PrefillsOfSeveralGroupsShareSteps) {
  SchedulerHarness harness(Groups(4));
  for (uint64_t id = 1; id <= 4; ++id) harness.Add(id, 300, 2);
  for (const Spans& spans : {Spans{{0, 128}}, Spans{{128, 128}}, Spans{{256, 44}}}) {
    for (const StepPlan& part : harness.PlanGroups().groups) EXPECT_EQ(SpansOf(part), spans);
    harness.Apply();
  }
  harness.RunToTheEnd();
}

// Where a chunk never fits beside a decode, groups take turns together, whoever began when.
TEST(SchedulerGroups, GroupsHoldTokensBackInTheSameSteps) {
  SchedulerOptions options = Groups(2);
  options.max_num_batched_tokens = options.prefill_chunk;
  SchedulerHarness harness(options);
  harness.Add(1, 3, 60);
  harness.Add(2, 3, 60);
  harness.PlanGroups();
  harness.Apply();
  harness.Add(3, 384, 2);
  harness.PlanGroups();
  harness.Apply();
  harness.Add(4, 384, 2);
  std::vector<std::string> turns(2);
  for (int i = 0; i < 8; ++i) {
    const StepPlans plans = harness.PlanGroups();
    for (size_t g = 0; g < 2; ++g) turns[g] += plans.groups[g].rows[0].is_decode() ? 'd' : 'p';
    harness.Apply();
  }
  EXPECT_EQ(turns[0], "pdpdpddd");
  EXPECT_EQ(turns[1], "ddpdpdpd");
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[4], SchedulerHarness::Plain(384, 2));
}

TEST(SchedulerGroups, WhoCameFirstEntersFirstThoughLaterOnesWouldFit) {
  SchedulerHarness harness(Groups(2));
  harness.Add(1, 400, 2);
  harness.Add(2, 400, 2);
  harness.Add(3, 400, 2);  // fits in neither group now
  harness.Add(4, 4, 2);
  EXPECT_EQ(IdsOf(harness.PlanGroups()), (Ids{{1}, {2}}));
  EXPECT_EQ(harness.scheduler.waiting(), 2);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[3], SchedulerHarness::Plain(400, 2));
}

TEST(SchedulerGroups, RequestMustFitIntoOneGroup) {
  SchedulerOptions options = Groups(4);
  options.num_pages = 4;
  const Scheduler scheduler(options);
  EXPECT_TRUE(scheduler.CheckFits(200, 57).ok());
  EXPECT_NE(scheduler.CheckFits(200, 58).message().find("there are 4"), std::string::npos);
  EXPECT_EQ(scheduler.num_pages(), 16);
}

// Requests 1 and 2 outgrow their group; 3 and 4, which came later, have another one.
TEST(SchedulerGroups, PreemptionIsWithinTheGroupAndMayEndInAnother) {
  SchedulerOptions options = Groups(2);
  options.num_pages = 6;
  SchedulerHarness harness(options);
  harness.Add(1, 130, 120);
  harness.PlanGroups();
  harness.Apply();
  harness.Add(3, 200, 30);
  harness.PlanGroups();
  harness.Apply();
  harness.Add(2, 60, 200);
  while (harness.scheduler.preemptions() == 0) harness.Turn();
  EXPECT_EQ(harness.scheduler.sequence(RequestId{2}).state, SequenceState::kWaiting);
  const int32_t first_group = harness.scheduler.sequence(RequestId{1}).group;
  while (harness.entered[2] < 2) harness.Turn();
  EXPECT_EQ(harness.scheduler.sequence(RequestId{2}).group, 1 - first_group);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(130, 120));
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(60, 200));
  EXPECT_EQ(harness.tokens[3], SchedulerHarness::Plain(200, 30));
}

}  // namespace
}  // namespace fathom
