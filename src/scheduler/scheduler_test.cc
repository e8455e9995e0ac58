// Which rows a step has, and in which order.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scheduler_harness.h"

namespace fathom {
namespace {

TEST(Scheduler, PromptIsCutAtChunkBorders) {
  const std::vector<std::pair<int32_t, Spans>> cases = {
      {1, {{0, 1}}},
      {127, {{0, 127}}},
      {128, {{0, 128}}},
      {129, {{0, 128}, {128, 1}}},
      {256, {{0, 128}, {128, 128}}},
      {300, {{0, 128}, {128, 128}, {256, 44}}},
  };
  for (const auto& [prompt, expected] : cases) {
    SchedulerHarness harness;
    harness.Add(1, prompt, 1);
    Spans rows;
    for (size_t i = 0; i < expected.size(); ++i) {
      const StepPlan plan = harness.Plan();
      ASSERT_EQ(plan.rows.size(), 1u);
      rows.push_back(SpansOf(plan)[0]);
      const StepRow& row = plan.rows[0];
      EXPECT_FALSE(row.is_decode());
      EXPECT_EQ(row.samples, i + 1 == expected.size());
      harness.Apply();
    }
    EXPECT_EQ(rows, expected) << prompt;
    EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(prompt, 1));
    EXPECT_EQ(harness.ends[1], SequenceEnd::kLength);
    EXPECT_TRUE(harness.scheduler.empty());
  }
}

TEST(Scheduler, DecodesArePlannedAheadOfResults) {
  SchedulerHarness harness;
  harness.Add(1, 5, 8);
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{0, 5}}));
  const StepPlan second = harness.Plan();
  EXPECT_EQ(SpansOf(second), (Spans{{kAtSlot, 1}}));
  EXPECT_TRUE(second.rows[0].is_decode());
  EXPECT_TRUE(second.rows[0].samples);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(5, 8));
}

TEST(Scheduler, NothingIsPlannedBeyondMaxTokens) {
  SchedulerHarness harness;
  harness.Add(1, 5, 1);
  EXPECT_EQ(harness.Plan().rows.size(), 1u);
  EXPECT_TRUE(harness.Plan().rows.empty());
  harness.Apply();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kLength);
}

TEST(Scheduler, PagesComeAtPageBorders) {
  SchedulerHarness harness;
  harness.Add(1, 64, 66);  // positions 0..128 are computed: three pages
  EXPECT_EQ(harness.Plan().rows[0].new_pages.size(), 1u);
  const StepPlan decode = harness.Plan();
  EXPECT_TRUE(decode.rows[0].is_decode());
  EXPECT_EQ(decode.rows[0].first_new_page, 1);
  EXPECT_EQ(decode.rows[0].new_pages.size(), 1u);
  harness.Apply();
  EXPECT_TRUE(harness.Plan().rows[0].new_pages.empty());
  EXPECT_EQ(harness.scheduler.free_pages(), 8);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(64, 66));
}

TEST(Scheduler, StopTokenRetractsWhatWasPlannedAhead) {
  SchedulerHarness harness;
  harness.Add(1, 5, 8);
  harness.say[{1, 6}] = kStopToken;
  harness.Plan();
  harness.Plan();
  harness.Apply();
  harness.Plan();
  harness.Apply();  // the stop token; position 6 is in flight
  EXPECT_EQ(harness.ends[1], SequenceEnd::kStop);
  EXPECT_FALSE(harness.scheduler.empty());
  EXPECT_EQ(harness.scheduler.free_pages(), 9);
  harness.Apply();
  EXPECT_TRUE(harness.scheduler.empty());
  EXPECT_EQ(harness.scheduler.free_pages(), 10);
  EXPECT_EQ(harness.tokens[1], (std::vector<TokenId>{TokenId{1005}, kStopToken}));
}

TEST(Scheduler, StopTokensDoNotCountBeforeMinTokens) {
  SchedulerHarness harness;
  RequestParams params = Params(5, 8);
  params.min_tokens = 3;
  harness.Add(1, params);
  for (int32_t at : {5, 7, 8}) harness.say[{1, at}] = kStopToken;
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1].size(), 4u);  // the stop tokens as first and third did not end it
  EXPECT_EQ(harness.ends[1], SequenceEnd::kStop);
}

TEST(Scheduler, StopTokenAsTheLastPossibleTokenIsAStop) {
  SchedulerHarness harness;
  harness.Add(1, 5, 2);
  harness.say[{1, 6}] = kStopToken;
  harness.RunToTheEnd();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kStop);
}

TEST(Scheduler, ModelLengthEndsARequest) {
  SchedulerHarness harness;
  harness.Add(1, 500, 1000);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kLength);
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(500, 12));
}

TEST(Scheduler, RowsAreExpandedThenAbsorbedByLengthThenDecodes) {
  SchedulerOptions options = SmallOptions();
  options.absorbed_limit = 50;
  SchedulerHarness harness(options);
  harness.Add(1, 3, 50);
  harness.Plan();
  harness.Apply();
  harness.Add(2, 100, 1);
  harness.Add(3, 40, 1);
  harness.Add(4, 60, 1);
  const StepPlan plan = harness.Plan();
  EXPECT_EQ(SpansOf(plan), (Spans{{0, 60}, {0, 100}, {0, 40}, {kAtSlot, 1}}));
}

TEST(Scheduler, BudgetIsKeptAndWhoCameFirstGoesFirst) {
  SchedulerHarness harness;  // 256 tokens a step
  for (uint64_t id = 1; id <= 3; ++id) harness.Add(id, 120, 1);
  EXPECT_EQ(SpansOf(harness.Plan()), (Spans{{0, 120}, {0, 120}}));
  const StepPlan second = harness.Plan();
  ASSERT_EQ(second.rows.size(), 1u);
  EXPECT_EQ(second.rows[0].request, RequestId{3});
}

// With a budget of one chunk a full chunk never fits beside a decode: they take turns.
TEST(Scheduler, SmallBudgetStarvesNeitherDecodesNorPrefills) {
  SchedulerOptions options = SmallOptions();
  options.max_num_batched_tokens = options.prefill_chunk;
  SchedulerHarness harness(options);
  harness.Add(1, 3, 60);
  harness.Plan();
  harness.Apply();
  harness.Add(2, 384, 2);
  std::string turns;
  for (int i = 0; i < 6; ++i) {
    const StepPlan plan = harness.Plan();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_LE(plan.num_tokens(), options.max_num_batched_tokens);
    turns += plan.rows[0].is_decode() ? 'd' : 'p';
    harness.Apply();
  }
  EXPECT_EQ(turns, "dpdpdp");
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(3, 60));
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(384, 2));
}

TEST(Scheduler, PrefillThatWasLeftOutAndCancelledHoldsNobodyBack) {
  SchedulerOptions options = SmallOptions();
  options.max_num_batched_tokens = options.prefill_chunk;
  SchedulerHarness harness(options);
  harness.Add(1, 3, 60);
  harness.Plan();
  harness.Apply();
  harness.Add(2, 384, 2);
  harness.Plan();
  harness.Apply();
  EXPECT_TRUE(harness.scheduler.Cancel(RequestId{2}));
  EXPECT_EQ(harness.Plan().rows.size(), 1u);
}

TEST(Scheduler, RequestsWaitForSlots) {
  SchedulerHarness harness;
  for (uint64_t id = 1; id <= 5; ++id) harness.Add(id, 4, 2);
  EXPECT_EQ(harness.Plan().rows.size(), 4u);
  EXPECT_EQ(harness.openings.size(), 4u);
  EXPECT_EQ(harness.scheduler.waiting(), 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[5], SchedulerHarness::Plain(4, 2));
}

TEST(Scheduler, RequestsWaitForPagesInOrder) {
  SchedulerHarness harness;  // 10 pages
  harness.Add(1, 400, 2);
  harness.Add(2, 400, 2);
  harness.Add(3, 4, 2);  // would fit, and must not overtake
  harness.Plan();
  EXPECT_EQ(harness.scheduler.running(), 1);
  EXPECT_EQ(harness.scheduler.waiting(), 2);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(400, 2));
}

// A client with many requests does not keep another's waiting behind all of them, nor the other way
// round.
TEST(Scheduler, ClientsTakeTurnsToEnter) {
  SchedulerHarness harness;  // four slots
  std::vector<uint64_t> order;
  const auto plan = [&] {
    harness.Plan();
    for (const SlotOpening& opening : harness.openings) order.push_back(Raw(opening.request));
  };
  for (uint64_t id = 1; id <= 9; ++id) harness.Add(id, 4, 2, /*client=*/7);
  plan();
  harness.Add(101, 4, 2, /*client=*/8);
  harness.Add(102, 4, 2, /*client=*/8);
  harness.Add(201, 4, 2, /*client=*/9);
  while (!harness.scheduler.empty()) {
    if (!harness.in_flight.empty()) harness.Apply();
    plan();
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 3, 4, 5, 101, 201, 6, 102, 7, 8, 9}));
}

// Or the next decode at the end of a page would preempt the newcomer.
TEST(Scheduler, NewcomerLeavesAPageForEachThatRuns) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 3;
  SchedulerHarness harness(options);
  harness.Add(1, 60, 70);  // two pages before long
  harness.Add(2, 60, 2);
  harness.Add(3, 60, 2);
  harness.Plan();
  EXPECT_EQ(harness.scheduler.running(), 2);
  EXPECT_EQ(harness.scheduler.free_pages(), 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.scheduler.preemptions(), 0);
}

TEST(Scheduler, WhatCanNeverRunIsRefusedWithTheNumbers) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 4;
  const Scheduler scheduler(options);
  const auto message = [&](int64_t prompt, int64_t max_tokens) {
    const Status status = scheduler.CheckFits(prompt, max_tokens);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << prompt << " " << max_tokens;
    return status.message();
  };
  EXPECT_NE(message(513, 1).find("513 tokens"), std::string::npos);
  EXPECT_NE(message(512, 2).find("at most 511"), std::string::npos);
  EXPECT_NE(message(200, 100).find("5 KV cache pages"), std::string::npos);
  EXPECT_NE(message(200, 58).find("and there are 4"), std::string::npos);
  message(0, 5);
  message(5, 0);
  EXPECT_TRUE(scheduler.CheckFits(200, 57).ok());  // 256 positions computed: just four pages
}

TEST(Scheduler, RequestThatNeedsThePoolExactlyRuns) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 4;
  SchedulerHarness harness(options);
  harness.Add(1, 200, 57);
  harness.Add(2, 256, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(200, 57));
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(256, 1));
}

TEST(Scheduler, PromptThatFillsTheContextIsScored) {
  SchedulerHarness harness(SmallOptions());
  harness.Add(1, 512, 1);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(512, 1));
}

TEST(Scheduler, OptionsThatCannotWorkAreRefusedByName) {
  const auto refused = [](auto change, const char* name) {
    SchedulerOptions options = SmallOptions();
    change(options);
    return Validate(options).message().find(name) != std::string::npos;
  };
  EXPECT_TRUE(Validate(SmallOptions()).ok());
  EXPECT_TRUE(refused([](auto& o) { o.max_num_seqs = 0; }, "--max-num-seqs 0"));
  EXPECT_TRUE(refused([](auto& o) { o.prefill_chunk = 0; }, "--prefill-chunk 0"));
  EXPECT_TRUE(refused([](auto& o) { o.num_pages = 0; }, "KV cache"));
  EXPECT_TRUE(refused([](auto& o) { o.max_model_len = 1; }, "--max-model-len 1"));
  EXPECT_TRUE(refused([](auto& o) { o.depth = 0; }, "in flight"));
  EXPECT_TRUE(refused([](auto& o) { o.max_num_batched_tokens = 127; }, "--max-num-batched-tokens"));
  EXPECT_TRUE(refused([](auto& o) { o.max_num_seqs = 257; }, "--max-num-batched-tokens"));
}

}  // namespace
}  // namespace fathom
