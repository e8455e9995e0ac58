// Requests that leave before their end: preempted, cancelled, failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "scheduler/scheduler_bench.h"

namespace fathom {
namespace {

TEST(Scheduler, FullPoolPreemptsWhoArrivedLastAndLosesNothing) {
  SchedulerBench bench;
  bench.Add(1, 250, 120);  // 6 pages in the end
  bench.Add(2, 250, 120);
  bench.RunToTheEnd();
  EXPECT_GE(bench.scheduler.preemptions(), 1);
  for (uint64_t id : {1, 2}) {
    EXPECT_EQ(bench.tokens[id], SchedulerBench::Plain(250, 120));
    EXPECT_EQ(bench.ends[id], SequenceEnd::kLength);
  }
}

// A bench in which request 2 was preempted a moment ago with rows still in flight.
std::unique_ptr<SchedulerBench> JustPreempted() {
  auto bench = std::make_unique<SchedulerBench>();
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
  EXPECT_EQ(bench->tokens[2], SchedulerBench::Plain(250, 120));
}

TEST(Scheduler, CancelWhilePreempted) {
  auto bench = JustPreempted();
  EXPECT_TRUE(bench->scheduler.Cancel(RequestId{2}));
  EXPECT_FALSE(bench->scheduler.Cancel(RequestId{2}));
  bench->scheduler.CheckIntegrity();
  bench->RunToTheEnd();
  EXPECT_EQ(bench->ends.count(2), 0u);
  EXPECT_EQ(bench->tokens[1], SchedulerBench::Plain(250, 120));
}

TEST(Scheduler, StopTokenInFlightEndsAPreemptedRequest) {
  auto bench = JustPreempted();
  const Sequence& second = bench->scheduler.sequence(RequestId{2});
  bench->say[{2, second.length()}] = kStopToken;
  bench->RunToTheEnd();
  EXPECT_EQ(bench->ends[2], SequenceEnd::kStop);
  EXPECT_EQ(bench->tokens[2].back(), kStopToken);
  EXPECT_EQ(bench->tokens[1], SchedulerBench::Plain(250, 120));
}

TEST(Scheduler, ResumeTwice) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 8;
  SchedulerBench bench(options);
  for (uint64_t id = 1; id <= 4; ++id) bench.Add(id, 60, 400);
  bench.RunToTheEnd();
  EXPECT_GE(*std::max_element(bench.entered.begin(), bench.entered.end()), 3);
  for (uint64_t id = 1; id <= 4; ++id)
    EXPECT_EQ(bench.tokens[id], SchedulerBench::Plain(60, 400)) << id;
}

TEST(Scheduler, PromptLogprobsAreAskedForOncePerPromptPosition) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 8;
  SchedulerBench bench(options);
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
  SchedulerBench bench;
  bench.Add(1, 400, 2);
  bench.Add(2, 400, 2);
  bench.Plan();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{2}));
  EXPECT_EQ(bench.scheduler.waiting(), 0);
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens.count(2), 0u);
}

TEST(Scheduler, CancelInFlightFreesThePagesOnceTheStepsAreDone) {
  SchedulerBench bench;
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
  SchedulerBench bench;
  bench.Add(1, 200, 20);
  bench.Plan();
  bench.Apply();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{1}));
  EXPECT_EQ(bench.scheduler.free_pages(), 10);
  EXPECT_TRUE(bench.scheduler.empty());
}

TEST(Scheduler, FailedRowEndsThatRequestOnly) {
  SchedulerBench bench;
  bench.Add(1, 20, 5);
  bench.Add(2, 20, 5);
  bench.failing = 1;
  bench.RunToTheEnd();
  EXPECT_EQ(bench.ends[1], SequenceEnd::kFailed);
  EXPECT_EQ(bench.ends[2], SequenceEnd::kLength);
  EXPECT_EQ(bench.tokens[2], SchedulerBench::Plain(20, 5));
}

// Request 2 is preempted with two rows in flight; before they are done, others leave pages enough
// for it to come back. Its slot and its pages are still in use then.
TEST(Scheduler, PreemptedRequestDoesNotReturnBeforeItsRowsInFlightAreDone) {
  SchedulerBench bench({.max_num_seqs = 5,
                        .max_num_batched_tokens = 512,
                        .prefill_chunk = 256,
                        .num_pages = 12,
                        .max_model_len = 512,
                        .depth = 3});
  // The second page that each comes to need is needed in decode 66 (of 1), 67 (of 0 and 4), and
  // later; decode 65 is the last one of 3.
  bench.Add(0, 62, 200);
  bench.Add(1, 191, 200);
  bench.Add(4, 62, 200);
  bench.Add(3, 45, 66);
  bench.Add(2, 55, 200);
  for (int step = 0; step <= 64; ++step) {
    EXPECT_EQ(bench.Plan().rows.size(), 5u);
    bench.Apply();
  }
  EXPECT_EQ(bench.scheduler.free_pages(), 0);
  bench.Plan();
  EXPECT_EQ(bench.Plan().rows.size(), 3u);  // 1 waits for a page of 3, which has ended
  EXPECT_TRUE(bench.Plan().rows.empty());   // 0 and 1 for both of its pages; 4 preempts 2
  const Sequence& second = bench.scheduler.sequence(RequestId{2});
  EXPECT_EQ(second.state, SequenceState::kWaiting);
  bench.Apply();
  EXPECT_TRUE(bench.scheduler.Cancel(RequestId{1}));
  ASSERT_EQ(second.rows_in_flight, 1);
  ASSERT_GE(bench.scheduler.free_pages(), PagesFor(second.length()) + 2 + 2);  // there is room
  bench.Plan();
  EXPECT_TRUE(bench.entries.empty());
  bench.Apply();
  ASSERT_EQ(second.rows_in_flight, 0);
  bench.Plan();
  ASSERT_EQ(bench.entries.size(), 1u);
  EXPECT_EQ(bench.entries[0].request, RequestId{2});
  bench.RunToTheEnd();
  EXPECT_EQ(bench.tokens[2], SchedulerBench::Plain(55, 200));
}

}  // namespace
}  // namespace fathom
