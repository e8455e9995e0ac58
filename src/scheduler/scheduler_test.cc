// Which rows a step has, and in which order.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scheduler_bench.h"

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
    SchedulerBench bench;
    bench.Add(1, prompt, 1);
    Spans rows;
    for (size_t i = 0; i < expected.size(); ++i) {
      const StepPlan plan = bench.Plan();
      ASSERT_EQ(plan.rows.size(), 1u);
      rows.push_back(SpansOf(plan)[0]);
      const StepRow& row = plan.rows[0];
      EXPECT_FALSE(row.is_decode());
      EXPECT_EQ(row.samples, i + 1 == expected.size());
      for (int32_t t = 0; t < row.num_tokens; ++t) {
        EXPECT_EQ(row.tokens[t], TokenId{row.position + t});
      }
      bench.Apply();
    }
    EXPECT_EQ(rows, expected) << prompt;
    EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(prompt, 1));
    EXPECT_EQ(bench.ends[1], SequenceEnd::kLength);
    EXPECT_TRUE(bench.scheduler.empty());
  }
}

TEST(Scheduler, DecodesArePlannedAheadOfResults) {
  SchedulerBench bench;
  bench.Add(1, 5, 8);
  EXPECT_EQ(SpansOf(bench.Plan()), (Spans{{0, 5}}));
  const StepPlan second = bench.Plan();
  EXPECT_EQ(SpansOf(second), (Spans{{5, 1}}));
  EXPECT_TRUE(second.rows[0].is_decode());
  EXPECT_TRUE(second.rows[0].samples);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(5, 8));
}

TEST(Scheduler, NothingIsPlannedBeyondMaxTokens) {
  SchedulerBench bench;
  bench.Add(1, 5, 1);
  EXPECT_EQ(bench.Plan().rows.size(), 1u);
  EXPECT_TRUE(bench.Plan().rows.empty());
  bench.Apply();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kLength);
}

TEST(Scheduler, PagesComeAtPageBorders) {
  SchedulerBench bench;
  bench.Add(1, 64, 66);  // positions 0..128 are computed: three pages
  EXPECT_EQ(bench.Plan().rows[0].new_pages.size(), 1u);
  const StepPlan decode = bench.Plan();
  EXPECT_EQ(decode.rows[0].position, 64);
  EXPECT_EQ(decode.rows[0].first_new_page, 1);
  EXPECT_EQ(decode.rows[0].new_pages.size(), 1u);
  bench.Apply();
  EXPECT_TRUE(bench.Plan().rows[0].new_pages.empty());
  EXPECT_EQ(bench.scheduler.free_pages(), 8);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(64, 66));
}

TEST(Scheduler, StopTokenRetractsWhatWasPlannedAhead) {
  SchedulerBench bench;
  bench.Add(1, 5, 8);
  bench.say[{1, 6}] = kStopToken;
  bench.Plan();
  bench.Plan();
  bench.Apply();
  bench.Plan();
  bench.Apply();  // the stop token; position 6 is in flight
  EXPECT_EQ(bench.ends[1], SequenceEnd::kStop);
  EXPECT_FALSE(bench.scheduler.empty());
  EXPECT_EQ(bench.scheduler.free_pages(), 9);
  bench.Apply();
  EXPECT_TRUE(bench.scheduler.empty());
  EXPECT_EQ(bench.scheduler.free_pages(), 10);
  EXPECT_EQ(bench.tokens[1], (std::vector<TokenId>{TokenId{1005}, kStopToken}));
}

TEST(Scheduler, StopTokensDoNotCountBeforeMinTokens) {
  SchedulerBench bench;
  SequenceSpec spec = Spec(1, 5, 8);
  spec.min_tokens = 3;
  bench.scheduler.Add(spec);
  for (int32_t at : {5, 7, 8}) bench.say[{1, at}] = kStopToken;
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1].size(), 4u);  // the stop tokens as first and third did not end it
  EXPECT_EQ(bench.ends[1], SequenceEnd::kStop);
}

TEST(Scheduler, StopTokenAsTheLastPossibleTokenIsAStop) {
  SchedulerBench bench;
  bench.Add(1, 5, 2);
  bench.say[{1, 6}] = kStopToken;
  bench.RunToTheEnd();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kStop);
}

TEST(Scheduler, ModelLengthEndsARequest) {
  SchedulerBench bench;
  bench.Add(1, 500, 1000);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kLength);
  EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(500, 12));
}

TEST(Scheduler, DecodesComeFirstThenPrefillsByLength) {
  SchedulerBench bench;
  bench.Add(1, 3, 50);
  bench.Plan();
  bench.Apply();
  bench.Add(2, 100, 1);
  bench.Add(3, 40, 1);
  bench.Add(4, 60, 1);
  const StepPlan plan = bench.Plan();
  EXPECT_EQ(SpansOf(plan), (Spans{{3, 1}, {0, 40}, {0, 60}, {0, 100}}));
  EXPECT_TRUE(plan.rows[0].is_decode());
}

TEST(Scheduler, BudgetIsKeptAndWhoCameFirstGoesFirst) {
  SchedulerBench bench;  // 256 tokens a step
  for (uint64_t id = 1; id <= 3; ++id) bench.Add(id, 120, 1);
  EXPECT_EQ(SpansOf(bench.Plan()), (Spans{{0, 120}, {0, 120}}));
  const StepPlan second = bench.Plan();
  ASSERT_EQ(second.rows.size(), 1u);
  EXPECT_EQ(second.rows[0].request, RequestId{3});
}

// With a budget of one chunk a full chunk never fits beside a decode: they take turns.
TEST(Scheduler, SmallBudgetStarvesNeitherDecodesNorPrefills) {
  SchedulerOptions options = SmallOptions();
  options.max_num_batched_tokens = options.prefill_chunk;
  SchedulerBench bench(options);
  bench.Add(1, 3, 60);
  bench.Plan();
  bench.Apply();
  bench.Add(2, 384, 2);
  std::string turns;
  for (int i = 0; i < 6; ++i) {
    const StepPlan plan = bench.Plan();
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_LE(plan.num_tokens(), options.max_num_batched_tokens);
    turns += plan.rows[0].is_decode() ? 'd' : 'p';
    bench.Apply();
  }
  EXPECT_EQ(turns, "dpdpdp");
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(3, 60));
  EXPECT_EQ(bench.tokens[2], SchedulerBench::Plain(384, 2));
}

TEST(Scheduler, PrefillThatWasLeftOutAndCancelledHoldsNobodyBack) {
  SchedulerOptions options = SmallOptions();
  options.max_num_batched_tokens = options.prefill_chunk;
  SchedulerBench bench(options);
  bench.Add(1, 3, 60);
  bench.Plan();
  bench.Apply();
  bench.Add(2, 384, 2);
  bench.Plan();
  bench.Apply();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{2}));
  EXPECT_EQ(bench.Plan().rows.size(), 1u);
}

TEST(Scheduler, RequestsWaitForSlots) {
  SchedulerBench bench;
  for (uint64_t id = 1; id <= 5; ++id) bench.Add(id, 4, 2);
  EXPECT_EQ(bench.Plan().rows.size(), 4u);
  EXPECT_EQ(bench.entries.size(), 4u);
  EXPECT_EQ(bench.scheduler.waiting(), 1);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[5], SchedulerBench::Plain(4, 2));
}

TEST(Scheduler, RequestsWaitForPagesInOrder) {
  SchedulerBench bench;  // 10 pages
  bench.Add(1, 400, 2);
  bench.Add(2, 400, 2);
  bench.Add(3, 4, 2);  // would fit, and must not overtake
  bench.Plan();
  EXPECT_EQ(bench.scheduler.running(), 1);
  EXPECT_EQ(bench.scheduler.waiting(), 2);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[2], SchedulerBench::Plain(400, 2));
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
  SchedulerBench bench(options);
  bench.Add(1, 200, 57);
  bench.Add(2, 256, 1);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(200, 57));
  EXPECT_EQ(bench.tokens[2], SchedulerBench::Plain(256, 1));
}

TEST(Scheduler, PromptThatFillsTheContextIsScored) {
  SchedulerBench bench(SmallOptions());
  bench.Add(1, 512, 1);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], SchedulerBench::Plain(512, 1));
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
