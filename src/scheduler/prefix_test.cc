// Requests that share the pages of equal beginnings.
#include <gtest/gtest.h>

#include "scheduler/scheduler_harness.h"

namespace fathom {
namespace {

SchedulerOptions Sharing() {
  SchedulerOptions options = SmallOptions();
  options.prefix_caching = true;
  options.num_pages = 20;
  return options;
}

// `shared` tokens that all have, and others of its own.
RequestParams Own(uint64_t id, int32_t shared, int32_t prompt_tokens, int32_t max_tokens) {
  RequestParams params = Params(prompt_tokens, max_tokens);
  for (int32_t at = shared; at < prompt_tokens; ++at) {
    params.prompt[static_cast<size_t>(at)] = TokenId{5000 + static_cast<int32_t>(id) * 100 + at};
  }
  return params;
}

TEST(Prefix, AHitEndsBeforeThePageOfThePromptsLastToken) {
  for (const auto& [prompt, begin] : {std::pair{1, 0},
                                      {64, 0},
                                      {65, 64},
                                      {127, 64},
                                      {128, 64},
                                      {129, 128},
                                      {300, 256},
                                      {320, 256},
                                      {321, 320}}) {
    SchedulerHarness harness(Sharing());
    harness.Add(1, 321, 3);
    harness.RunToTheEnd();
    harness.Add(2, prompt, 3);
    harness.RunToTheEnd();
    EXPECT_EQ(harness.cached[1], 0);
    EXPECT_EQ(harness.cached[2], begin) << prompt;
    EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(prompt, 3));
    EXPECT_EQ(harness.scheduler.prefix_queries(), 321 + prompt);
    EXPECT_EQ(harness.scheduler.prefix_hits(), begin);
    EXPECT_EQ(harness.scheduler.prompt_tokens(), 321 + prompt - begin);
  }
}

TEST(Prefix, TheFirstRowBeginsWhereTheHitEnds) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, 320, 1);
  harness.RunToTheEnd();
  harness.Add(2, Own(2, 200, 320, 1));
  const StepPlan plan = harness.Plan();
  EXPECT_EQ(SpansOf(plan), (Spans{{192, 64}}));  // to the border of its chunk
  EXPECT_EQ(plan.openings[0].length, 192);
  EXPECT_EQ(plan.rows[0].new_pages.size(), 5u);
  harness.RunToTheEnd();
}

TEST(Prefix, WithoutCachingNothingIsShared) {
  SchedulerHarness harness;
  for (uint64_t id = 1; id <= 3; ++id) harness.Add(id, 129, 2);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.scheduler.prefix_queries(), 0);
  EXPECT_EQ(harness.scheduler.prompt_tokens(), 3 * 129);
}

TEST(Prefix, WhoComesTogetherSharesTheComputation) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, 300, 2);
  harness.Add(2, Own(2, 280, 300, 2));
  harness.Add(3, Own(3, 140, 200, 2));
  harness.Add(4, Own(4, 0, 30, 2));  // waits for nobody, and passes
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{0, 30}, {0, 128}}));
  harness.Plan();
  harness.Apply();  // pages 0 and 1 are there: enough for request 3
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{256, 44}, {128, 72}}));
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 256);
  EXPECT_EQ(harness.cached[3], 128);
  EXPECT_EQ(harness.scheduler.prompt_tokens(), 300 + 44 + 72 + 30);
  for (uint64_t id : {1, 2}) EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(300, 2));
}

TEST(Prefix, WhoWaitsComputesWhatACancelledRequestDidNot) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, 300, 2);
  harness.Add(2, 300, 2);
  harness.Plan();
  harness.Plan();
  harness.Apply();
  EXPECT_TRUE(harness.scheduler.Cancel(RequestId{1}));
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{128, 128}}));  // of request 2
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 128);
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(300, 2));
}

TEST(Prefix, WhatAFailedRowWroteIsNotPublished) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, 129, 2);
  harness.fails[1] = 129;
  harness.Add(2, 100, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kFailed);
  EXPECT_EQ(harness.cached[2], 64);  // of the row before
  harness.Add(3, 10, 1);
  harness.fails[3] = 10;
  harness.RunToTheEnd();
  EXPECT_EQ(harness.ends[3], SequenceEnd::kFailed);
}

TEST(Prefix, DecodedPagesAreNotPublished) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, 60, 100);
  harness.RunToTheEnd();
  RequestParams params = Params(60, 1);
  for (const TokenId token : harness.tokens[1]) params.prompt.push_back(token);
  harness.Add(2, params);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 0);
}

// A talk goes on: what was said is part of the next prompt, whatever form it took.
TEST(Prefix, DecodedPagesArePublishedIfThatIsAskedFor) {
  SchedulerOptions options = Sharing();
  options.reuse_decoded = true;
  options.absorbed_limit = 100;
  SchedulerHarness harness(options);
  harness.Add(1, 60, 133);  // 192 positions are computed, and the token at 192 is known
  harness.RunToTheEnd();
  RequestParams params = Params(60, 1);
  for (const TokenId token : harness.tokens[1]) params.prompt.push_back(token);
  params.prompt.push_back(TokenId{7});
  harness.Add(2, params);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 192);
  params.prompt[150] = TokenId{7};  // in the third page
  harness.Add(3, params);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[3], 128);
}

TEST(Prefix, APreemptedRequestFindsWhatItGeneratedIfThatIsAskedFor) {
  SchedulerOptions options = Sharing();
  options.reuse_decoded = true;
  options.num_pages = 9;
  options.max_num_seqs = 2;
  options.absorbed_limit = 1000;
  SchedulerHarness harness(options);
  harness.Add(1, Own(1, 0, 60, 300));
  harness.Add(2, Own(2, 0, 60, 300));
  harness.RunToTheEnd();
  EXPECT_GT(harness.scheduler.preemptions(), 0);
  for (uint64_t id : {1, 2}) EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(60, 300));
}

TEST(Prefix, PromptLogprobsTakeNoHitAndGiveSome) {
  SchedulerHarness harness(Sharing());
  RequestParams params = Params(200, 1);
  params.prompt_logprobs = 0;
  harness.Add(1, params);
  harness.RunToTheEnd();
  harness.Add(2, params);
  harness.Add(3, 200, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 0);
  EXPECT_EQ(harness.cached[3], 192);
  EXPECT_EQ(harness.scheduler.prefix_queries(), 200);
}

TEST(Prefix, AnotherSaltFindsNothing) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, Params(200, 1), 0, "mine");
  harness.Add(2, Params(200, 1), 0, "yours");
  harness.Add(3, Params(200, 1), 0, "mine");
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{0, 128}, {0, 128}}));
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 0);
  EXPECT_EQ(harness.cached[3], 192);
}

// A chunk of 128 of which the prompt has 101 tokens or more is expanded.
TEST(Prefix, PagesOfAnotherFormAreNotShared) {
  SchedulerOptions options = Sharing();
  options.absorbed_limit = 100;
  SchedulerHarness harness(options);
  harness.Add(1, 240, 1);
  harness.RunToTheEnd();
  harness.Add(2, 100, 1);  // absorbed
  harness.Add(3, 200, 1);  // its second chunk is absorbed, its first is not
  harness.Add(4, 233, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 0);
  EXPECT_EQ(harness.cached[3], 128);
  EXPECT_EQ(harness.cached[4], 192);
}

TEST(Prefix, APreemptedRequestFindsItsPagesAgain) {
  SchedulerOptions options = Sharing();
  options.num_pages = 8;
  options.max_num_seqs = 2;
  SchedulerHarness harness(options);
  harness.Add(1, Own(1, 128, 190, 200));
  harness.Add(2, Own(2, 128, 190, 200));
  harness.RunToTheEnd();
  EXPECT_GT(harness.scheduler.preemptions(), 0);
  EXPECT_EQ(harness.entered[1], 1);
  EXPECT_EQ(harness.cached[2], 128);
  EXPECT_EQ(harness.scheduler.prompt_tokens(), 190 + 62);  // each once
  for (uint64_t id : {1, 2}) EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(190, 200));
}

TEST(Prefix, PagesInUseByOthersAreNotSoonFree) {
  SchedulerOptions options = Sharing();
  options.num_pages = 5;
  options.max_num_seqs = 3;
  SchedulerHarness harness(options);
  for (uint64_t id = 1; id <= 3; ++id) harness.Add(id, Own(id, 128, 140, 40 * id));
  harness.RunToTheEnd();
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(140, 40 * static_cast<int32_t>(id)));
  }
}

TEST(Prefix, LongestUnusedPagesMakeRoom) {
  SchedulerOptions options = Sharing();
  options.num_pages = 6;
  SchedulerHarness harness(options);
  harness.Add(1, Own(1, 0, 129, 1));
  harness.RunToTheEnd();
  harness.Add(2, Own(2, 0, 129, 1));
  harness.RunToTheEnd();
  harness.Add(3, Own(3, 0, 200, 1));  // four pages: two free ones, and those of request 1
  harness.RunToTheEnd();
  harness.Add(4, Own(1, 0, 129, 1));
  harness.Add(5, Own(2, 0, 129, 1));
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[4], 0);
}

TEST(Prefix, AResetForgetsWhatWasWritten) {
  SchedulerHarness harness(Sharing());
  harness.Add(1, 300, 1);
  harness.Plan();
  harness.Plan();
  harness.Apply();
  harness.scheduler.ResetPrefixCache();
  harness.scheduler.CheckIntegrity();
  harness.RunToTheEnd();
  harness.Add(2, 300, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[2], 0);
  harness.Add(3, 300, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.cached[3], 256);
}

TEST(Prefix, ARequestGoesWhereItsPrefixIs) {
  SchedulerOptions options = Sharing();
  options.groups = 3;
  SchedulerHarness harness(options);
  harness.Add(1, Own(1, 0, 100, 1));  // in group 0
  harness.Add(2, Own(2, 0, 300, 1));  // in group 1
  harness.RunToTheEnd();
  harness.Add(3, Own(2, 0, 320, 1));
  const StepPlans plans = harness.PlanGroups();
  EXPECT_EQ(SpansOf(plans.groups[1]), (Spans{{256, 64}}));
  harness.RunToTheEnd();
}

TEST(Prefix, ARequestLeavesAGroupThatIsMuchFuller) {
  for (const auto& [other, group] : {std::pair{60, 0}, {300, 1}}) {
    SchedulerOptions options = Sharing();
    options.groups = 2;
    options.num_pages = 10;
    SchedulerHarness harness(options);
    harness.Add(1, Own(1, 0, 129, 1));  // in group 0
    harness.RunToTheEnd();
    harness.Add(2, Own(2, 0, other, 50));  // there too
    for (int i = 0; i < 5; ++i) harness.Turn();
    EXPECT_EQ(harness.entered[2], 1);
    harness.Add(3, Own(1, 0, 140, 1));
    harness.Apply();
    const StepPlans plans = harness.PlanGroups();
    EXPECT_EQ(plans.groups[static_cast<size_t>(group)].openings.size(), 1u) << other;
    harness.RunToTheEnd();
  }
}

}  // namespace
}  // namespace fathom
