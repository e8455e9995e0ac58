#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

namespace fathom {
namespace {

constexpr TokenId kStopToken{999};

// 4 slots, chunks of 128, 10 pages, contexts up to 512.
SchedulerOptions SmallOptions() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 256,
          .prefill_chunk = 128,
          .num_pages = 10,
          .max_model_len = 512,
          .depth = 2};
}

SequenceSpec Spec(uint64_t id, int32_t prompt_tokens, int32_t max_tokens) {
  SequenceSpec spec;
  spec.id = RequestId{id};
  for (int32_t i = 0; i < prompt_tokens; ++i) spec.prompt.push_back(TokenId{i});
  spec.stop_tokens = {kStopToken};
  spec.max_tokens = max_tokens;
  return spec;
}

// Turns a scheduler by hand; the token at position p is 1000 + p unless told otherwise.
class Bench {
 public:
  explicit Bench(const SchedulerOptions& options = SmallOptions()) : scheduler(options) {}

  void Add(uint64_t id, int32_t prompt_tokens, int32_t max_tokens) {
    scheduler.Add(Spec(id, prompt_tokens, max_tokens));
  }
  // Plans a step, in flight until Apply(); no rows: nothing could run.
  StepPlan Plan() {
    PlannedStep step = scheduler.Plan();
    entries = step.entries;
    for (const SlotEntry& entry : entries) ++entered[Raw(entry.request)];
    if (!step.plan.rows.empty()) in_flight.push_back(step.plan);
    scheduler.CheckIntegrity();
    return step.plan;
  }
  void Apply() {
    const StepPlan plan = in_flight.front();
    in_flight.pop_front();
    std::vector<RowOutcome> outcomes;
    for (const StepRow& row : plan.rows) {
      const int32_t at = row.position + row.num_tokens;
      const auto said = say.find({Raw(row.request), at});
      outcomes.push_back({.failed = failing == Raw(row.request),
                          .token = said == say.end() ? TokenId{1000 + at} : said->second});
    }
    const auto effects = scheduler.Apply(plan, outcomes);
    for (size_t i = 0; i < effects.size(); ++i) {
      const uint64_t id = Raw(plan.rows[i].request);
      if (effects[i].counts && plan.rows[i].samples) tokens[id].push_back(outcomes[i].token);
      if (effects[i].end) ends[id] = *effects[i].end;
    }
    scheduler.CheckIntegrity();
  }
  // Plans one step, after applying as many as that takes.
  void Turn() {
    if (in_flight.size() == 2) Apply();
    while (Plan().rows.empty()) Apply();
  }
  void RunToTheEnd() {
    for (int steps = 0; !scheduler.empty(); ++steps) {
      ASSERT_LT(steps, 10000);
      while (in_flight.size() < 2 && !Plan().rows.empty()) {
      }
      Apply();
    }
    EXPECT_EQ(scheduler.free_pages(), scheduler.options().num_pages);
  }
  // The tokens of a request that nothing stops early.
  static std::vector<TokenId> Plain(int32_t prompt_tokens, int32_t n) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < n; ++i) tokens.push_back(TokenId{1000 + prompt_tokens + i});
    return tokens;
  }

  Scheduler scheduler;
  std::deque<StepPlan> in_flight;
  std::vector<SlotEntry> entries;  // of the last plan
  std::array<int, 8> entered{};    // how often each request entered a slot
  std::map<std::pair<uint64_t, int32_t>, TokenId> say;
  uint64_t failing = ~uint64_t{0};
  std::map<uint64_t, std::vector<TokenId>> tokens;
  std::map<uint64_t, SequenceEnd> ends;
};

// (position, tokens) of a plan's rows.
using Spans = std::vector<std::pair<int32_t, int32_t>>;
Spans SpansOf(const StepPlan& plan) {
  Spans spans;
  for (const StepRow& row : plan.rows) spans.emplace_back(row.position, row.num_tokens);
  return spans;
}

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
    Bench bench;
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
    EXPECT_EQ(bench.tokens[1], Bench::Plain(prompt, 1));
    EXPECT_EQ(bench.ends[1], SequenceEnd::kLength);
    EXPECT_TRUE(bench.scheduler.empty());
  }
}

TEST(Scheduler, DecodesArePlannedAheadOfResults) {
  Bench bench;
  bench.Add(1, 5, 8);
  EXPECT_EQ(SpansOf(bench.Plan()), (Spans{{0, 5}}));
  const StepPlan second = bench.Plan();
  EXPECT_EQ(SpansOf(second), (Spans{{5, 1}}));
  EXPECT_TRUE(second.rows[0].is_decode());
  EXPECT_TRUE(second.rows[0].samples);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], Bench::Plain(5, 8));
}

TEST(Scheduler, NothingIsPlannedBeyondMaxTokens) {
  Bench bench;
  bench.Add(1, 5, 1);
  EXPECT_EQ(bench.Plan().rows.size(), 1u);
  EXPECT_TRUE(bench.Plan().rows.empty());
  bench.Apply();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kLength);
}

TEST(Scheduler, PagesComeAtPageBorders) {
  Bench bench;
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
  EXPECT_EQ(bench.tokens[1], Bench::Plain(64, 66));
}

TEST(Scheduler, StopTokenRetractsWhatWasPlannedAhead) {
  Bench bench;
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
  Bench bench;
  SequenceSpec spec = Spec(1, 5, 8);
  spec.min_tokens = 3;
  bench.scheduler.Add(spec);
  for (int32_t at : {5, 7, 8}) bench.say[{1, at}] = kStopToken;
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1].size(), 4u);  // the stop tokens as first and third did not end it
  EXPECT_EQ(bench.ends[1], SequenceEnd::kStop);
}

TEST(Scheduler, StopTokenAsTheLastPossibleTokenIsAStop) {
  Bench bench;
  bench.Add(1, 5, 2);
  bench.say[{1, 6}] = kStopToken;
  bench.RunToTheEnd();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kStop);
}

TEST(Scheduler, ModelLengthEndsARequest) {
  Bench bench;
  bench.Add(1, 500, 1000);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kLength);
  EXPECT_EQ(bench.tokens[1], Bench::Plain(500, 12));
}

TEST(Scheduler, DecodesComeFirstThenPrefillsByLength) {
  Bench bench;
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
  Bench bench;  // 256 tokens a step
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
  Bench bench(options);
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
  EXPECT_EQ(bench.tokens[1], Bench::Plain(3, 60));
  EXPECT_EQ(bench.tokens[2], Bench::Plain(384, 2));
}

TEST(Scheduler, PrefillThatWasLeftOutAndCancelledHoldsNobodyBack) {
  SchedulerOptions options = SmallOptions();
  options.max_num_batched_tokens = options.prefill_chunk;
  Bench bench(options);
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
  Bench bench;
  for (uint64_t id = 1; id <= 5; ++id) bench.Add(id, 4, 2);
  EXPECT_EQ(bench.Plan().rows.size(), 4u);
  EXPECT_EQ(bench.entries.size(), 4u);
  EXPECT_EQ(bench.scheduler.waiting(), 1);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[5], Bench::Plain(4, 2));
}

TEST(Scheduler, RequestsWaitForPagesInOrder) {
  Bench bench;  // 10 pages
  bench.Add(1, 400, 2);
  bench.Add(2, 400, 2);
  bench.Add(3, 4, 2);  // would fit, and must not overtake
  bench.Plan();
  EXPECT_EQ(bench.scheduler.running(), 1);
  EXPECT_EQ(bench.scheduler.waiting(), 2);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[2], Bench::Plain(400, 2));
}

TEST(Scheduler, FullPoolPreemptsWhoArrivedLastAndLosesNothing) {
  Bench bench;
  bench.Add(1, 250, 120);  // 6 pages in the end
  bench.Add(2, 250, 120);
  bench.RunToTheEnd();
  EXPECT_GE(bench.scheduler.preemptions(), 1);
  for (uint64_t id : {1, 2}) {
    EXPECT_EQ(bench.tokens[id], Bench::Plain(250, 120));
    EXPECT_EQ(bench.ends[id], SequenceEnd::kLength);
  }
}

// A bench in which request 2 was preempted a moment ago with rows still in flight.
std::unique_ptr<Bench> JustPreempted() {
  auto bench = std::make_unique<Bench>();
  bench->Add(1, 250, 120);
  bench->Add(2, 250, 120);
  while (bench->scheduler.preemptions() == 0) {
    if (bench->in_flight.size() == 2) bench->Apply();
    bench->Plan();
  }
  return bench;
}

TEST(Scheduler, PreemptedRequestAppliesItsTokensInFlightAndResumesWithThem) {
  auto bench = JustPreempted();
  const Sequence& second = bench->scheduler.sequence(RequestId{2});
  EXPECT_EQ(second.state, SequenceState::kWaiting);
  const size_t before = second.generated.size();
  ASSERT_GE(second.samples_in_flight, 1);
  const size_t in_flight = second.samples_in_flight;
  while (second.rows_in_flight > 0) bench->Apply();
  EXPECT_EQ(second.generated.size(), before + in_flight);
  EXPECT_TRUE(second.pages.empty());
  while (bench->entries.empty() || bench->entries[0].request != RequestId{2}) {
    bench->Turn();
  }
  EXPECT_EQ(second.prefill_end, second.length());
  const StepRow& row = bench->in_flight.back().rows.back();
  EXPECT_EQ(row.request, RequestId{2});
  EXPECT_EQ(row.position, 0);
  EXPECT_EQ(row.first_new_page, 0);
  EXPECT_EQ(static_cast<int32_t>(row.new_pages.size()), PagesFor(second.length()));
  bench->RunToTheEnd();
  EXPECT_EQ(bench->tokens[2], Bench::Plain(250, 120));
}

TEST(Scheduler, CancelWhilePreempted) {
  auto bench = JustPreempted();
  EXPECT_TRUE(bench->scheduler.Cancel(RequestId{2}));
  EXPECT_FALSE(bench->scheduler.Cancel(RequestId{2}));
  bench->scheduler.CheckIntegrity();
  bench->RunToTheEnd();
  EXPECT_EQ(bench->ends.count(2), 0u);
  EXPECT_EQ(bench->tokens[1], Bench::Plain(250, 120));
}

TEST(Scheduler, StopTokenInFlightEndsAPreemptedRequest) {
  auto bench = JustPreempted();
  const Sequence& second = bench->scheduler.sequence(RequestId{2});
  bench->say[{2, second.length()}] = kStopToken;
  bench->RunToTheEnd();
  EXPECT_EQ(bench->ends[2], SequenceEnd::kStop);
  EXPECT_EQ(bench->tokens[2].back(), kStopToken);
  EXPECT_EQ(bench->tokens[1], Bench::Plain(250, 120));
}

TEST(Scheduler, ResumeTwice) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 8;
  Bench bench(options);
  for (uint64_t id = 1; id <= 4; ++id) bench.Add(id, 60, 400);
  bench.RunToTheEnd();
  EXPECT_GE(*std::max_element(bench.entered.begin(), bench.entered.end()), 3);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(bench.tokens[id], Bench::Plain(60, 400)) << id;
}

TEST(Scheduler, PromptLogprobsAreAskedForOncePerPromptPosition) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 8;
  Bench bench(options);
  std::map<uint64_t, std::vector<int>> asked;
  for (uint64_t id = 1; id <= 4; ++id) {
    SequenceSpec spec = Spec(id, id == 3 ? 129 : 100, 300);
    spec.prompt_logprobs = id != 4;
    bench.scheduler.Add(spec);
    asked[id].resize(spec.prompt.size());
  }
  while (!bench.scheduler.empty()) {
    while (bench.in_flight.size() < 2) {
      const StepPlan plan = bench.Plan();
      if (plan.rows.empty()) break;
      for (const StepRow& row : plan.rows) {
        if (!row.prompt_logprobs) continue;
        auto& of = asked[Raw(row.request)];
        EXPECT_FALSE(row.is_decode());
        for (int32_t at = row.position; at < row.position + row.num_tokens; ++at) {
          ASSERT_LT(at, static_cast<int32_t>(of.size()));
          ++of[at];
        }
      }
    }
    bench.Apply();
  }
  EXPECT_GE(bench.scheduler.preemptions(), 2);
  EXPECT_EQ(asked[1], std::vector<int>(100, 1));
  EXPECT_EQ(asked[2], std::vector<int>(100, 1));
  std::vector<int> third(129, 1);
  third.back() = 0;  // the last token's successor is not in the prompt
  EXPECT_EQ(asked[3], third);
  EXPECT_EQ(asked[4], std::vector<int>(100, 0));
}

TEST(Scheduler, CancelWhileWaiting) {
  Bench bench;
  bench.Add(1, 400, 2);
  bench.Add(2, 400, 2);
  bench.Plan();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{2}));
  EXPECT_EQ(bench.scheduler.waiting(), 0);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens.count(2), 0u);
}

TEST(Scheduler, CancelInFlightFreesThePagesOnceTheStepsAreDone) {
  Bench bench;
  bench.Add(1, 200, 20);
  bench.Plan();
  bench.Plan();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{1}));
  EXPECT_EQ(bench.scheduler.running(), 0);
  bench.Apply();
  EXPECT_EQ(bench.scheduler.free_pages(), 6);
  EXPECT_FALSE(bench.scheduler.empty());
  bench.Apply();
  EXPECT_EQ(bench.scheduler.free_pages(), 10);
  EXPECT_TRUE(bench.scheduler.empty());
  EXPECT_TRUE(bench.tokens[1].empty());
  EXPECT_FALSE(bench.scheduler.Cancel(RequestId{1}));
}

TEST(Scheduler, CancelWithNothingInFlightFreesThePagesAtOnce) {
  Bench bench;
  bench.Add(1, 200, 20);
  bench.Plan();
  bench.Apply();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{1}));
  EXPECT_EQ(bench.scheduler.free_pages(), 10);
  EXPECT_TRUE(bench.scheduler.empty());
}

TEST(Scheduler, FailedRowEndsThatRequestOnly) {
  Bench bench;
  bench.Add(1, 20, 5);
  bench.Add(2, 20, 5);
  bench.failing = 1;
  bench.RunToTheEnd();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kFailed);
  EXPECT_EQ(bench.ends[2], SequenceEnd::kLength);
  EXPECT_EQ(bench.tokens[2], Bench::Plain(20, 5));
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
  EXPECT_NE(message(512, 1).find("512 tokens"), std::string::npos);
  EXPECT_NE(message(512, 1).find("at most 511"), std::string::npos);
  EXPECT_NE(message(200, 100).find("5 KV cache pages"), std::string::npos);
  EXPECT_NE(message(200, 58).find("and there are 4"), std::string::npos);
  message(0, 5);
  message(5, 0);
  EXPECT_TRUE(scheduler.CheckFits(200, 57).ok());  // 256 positions computed: just four pages
}

TEST(Scheduler, RequestThatNeedsThePoolExactlyRuns) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 4;
  Bench bench(options);
  bench.Add(1, 200, 57);
  bench.Add(2, 256, 1);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[1], Bench::Plain(200, 57));
  EXPECT_EQ(bench.tokens[2], Bench::Plain(256, 1));
}

TEST(Scheduler, OptionsThatCannotWorkAreRefusedByName) {
  const auto refused = [](auto change, const char* name) {
    SchedulerOptions options = SmallOptions();
    change(options);
    return Validate(options).message().find(name) != std::string::npos;
  };
  EXPECT_TRUE(Validate(SmallOptions()).ok());
  EXPECT_TRUE(refused([](auto& o) { o.max_num_seqs = 0; }, "max_num_seqs"));
  EXPECT_TRUE(refused([](auto& o) { o.prefill_chunk = 0; }, "prefill_chunk"));
  EXPECT_TRUE(refused([](auto& o) { o.num_pages = 0; }, "num_pages"));
  EXPECT_TRUE(refused([](auto& o) { o.max_model_len = 1; }, "max_model_len"));
  EXPECT_TRUE(refused([](auto& o) { o.depth = 0; }, "depth"));
  EXPECT_TRUE(refused([](auto& o) { o.max_num_batched_tokens = 127; }, "max_num_batched_tokens"));
  EXPECT_TRUE(refused([](auto& o) { o.max_num_seqs = 257; }, "max_num_batched_tokens"));
}

}  // namespace
}  // namespace fathom
