// Requests that leave before their end: preempted, cancelled, failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "scheduler/scheduler_harness.h"

namespace fathom {
namespace {

TEST(Scheduler, FullPoolPreemptsWhoArrivedLastAndLosesNothing) {
  SchedulerHarness harness;
  harness.Add(1, 250, 120);  // 6 pages in the end
  harness.Add(2, 250, 120);
  harness.RunToTheEnd();
  EXPECT_GE(harness.scheduler.preemptions(), 1);
  EXPECT_EQ(harness.preempted[1], 0);
  EXPECT_EQ(harness.preempted[2], harness.scheduler.preemptions());
  for (uint64_t id : {1, 2}) {
    EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(250, 120));
    EXPECT_EQ(harness.ends[id], SequenceEnd::kLength);
  }
}

// A harness in which request 2 was preempted a moment ago with rows still in flight.
std::unique_ptr<SchedulerHarness> JustPreempted() {
  auto harness = std::make_unique<SchedulerHarness>();
  harness->Add(1, 250, 120);
  harness->Add(2, 250, 120);
  while (harness->scheduler.preemptions() == 0) {
    if (harness->in_flight.size() == 2) harness->Apply();
    harness->Plan();
  }
  return harness;
}

TEST(Scheduler, PreemptedRequestAppliesItsTokensInFlightAndResumesWithThem) {
  auto harness = JustPreempted();
  const Sequence& second = harness->scheduler.sequence(RequestId{2});
  EXPECT_EQ(second.state, SequenceState::kWaiting);
  const size_t before = second.generated.size();
  ASSERT_GE(second.samples_in_flight, 1);
  const size_t in_flight = second.samples_in_flight;
  while (second.rows_in_flight > 0) harness->Apply();
  EXPECT_EQ(second.generated.size(), before + in_flight);
  EXPECT_TRUE(second.pages.empty());
  while (harness->openings.empty() || harness->openings[0].request != RequestId{2}) {
    harness->Turn();
  }
  EXPECT_EQ(second.prefill_end, second.length());
  EXPECT_EQ(harness->openings[0].generated, second.generated);
  const StepRow& row = harness->in_flight.back().groups[0].rows.front();
  EXPECT_EQ(row.request, RequestId{2});
  EXPECT_EQ(row.begin, 0);
  EXPECT_EQ(row.first_new_page, 0);
  EXPECT_EQ(static_cast<int32_t>(row.new_pages.size()), PagesFor(second.length()));
  harness->RunToTheEnd();
  EXPECT_EQ(harness->tokens[2], SchedulerHarness::Plain(250, 120));
}

TEST(Scheduler, CancelWhilePreempted) {
  auto harness = JustPreempted();
  EXPECT_TRUE(harness->scheduler.Cancel(RequestId{2}));
  EXPECT_FALSE(harness->scheduler.Cancel(RequestId{2}));
  harness->scheduler.CheckIntegrity();
  harness->RunToTheEnd();
  EXPECT_EQ(harness->ends.count(2), 0u);
  EXPECT_EQ(harness->tokens[1], SchedulerHarness::Plain(250, 120));
}

TEST(Scheduler, StopTokenInFlightEndsAPreemptedRequest) {
  auto harness = JustPreempted();
  const Sequence& second = harness->scheduler.sequence(RequestId{2});
  harness->say[{2, second.length()}] = kStopToken;
  harness->RunToTheEnd();
  EXPECT_EQ(harness->ends[2], SequenceEnd::kStop);
  EXPECT_EQ(harness->tokens[2].back(), kStopToken);
  EXPECT_EQ(harness->tokens[1], SchedulerHarness::Plain(250, 120));
}

TEST(Scheduler, ResumeTwice) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 8;
  SchedulerHarness harness(options);
  for (uint64_t id = 1; id <= 4; ++id) harness.Add(id, 60, 400);
  harness.RunToTheEnd();
  int most = 0;
  for (const auto& [id, times] : harness.entered) most = std::max(most, times);
  EXPECT_GE(most, 3);
  for (uint64_t id = 1; id <= 4; ++id)
    EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(60, 400)) << id;
}

TEST(Scheduler, PromptLogprobsAreAskedForOncePerPromptPosition) {
  SchedulerOptions options = SmallOptions();
  options.num_pages = 8;
  SchedulerHarness harness(options);
  std::map<uint64_t, std::vector<int>> asked;
  for (uint64_t id = 1; id <= 4; ++id) {
    RequestParams params = Params(id == 3 ? 129 : 100, 300);
    params.prompt_logprobs = id != 4 ? 0 : -1;
    asked[id].resize(params.prompt.size());
    harness.Add(id, std::move(params));
  }
  while (!harness.scheduler.empty()) {
    while (harness.in_flight.size() < 2) {
      const StepPlan plan = harness.Plan();
      if (plan.rows.empty()) break;
      for (const StepRow& row : plan.rows) {
        if (!row.prompt_logprobs) continue;
        auto& of = asked[Raw(row.request)];
        EXPECT_FALSE(row.is_decode());
        for (int32_t at = row.begin; at < row.begin + row.num_tokens(); ++at) {
          ASSERT_LT(at, static_cast<int32_t>(of.size()));
          ++of[at];
        }
      }
    }
    harness.Apply();
  }
  EXPECT_GE(harness.scheduler.preemptions(), 2);
  EXPECT_EQ(asked[1], std::vector<int>(100, 1));
  EXPECT_EQ(asked[2], std::vector<int>(100, 1));
  std::vector<int> third(129, 1);
  third.back() = 0;  // the last token's successor is not in the prompt
  EXPECT_EQ(asked[3], third);
  EXPECT_EQ(asked[4], std::vector<int>(100, 0));
}

TEST(Scheduler, CancelWhileWaiting) {
  SchedulerHarness harness;
  harness.Add(1, 400, 2);
  harness.Add(2, 400, 2);
  harness.Plan();
  EXPECT_TRUE(harness.scheduler.Cancel(RequestId{2}));
  EXPECT_EQ(harness.scheduler.waiting(), 0);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens.count(2), 0u);
}

TEST(Scheduler, CancelInFlightFreesThePagesOnceTheStepsAreDone) {
  SchedulerHarness harness;
  harness.Add(1, 200, 20);
  harness.Plan();
  harness.Plan();
  EXPECT_TRUE(harness.scheduler.Cancel(RequestId{1}));
  EXPECT_EQ(harness.scheduler.running(), 0);
  harness.Apply();
  EXPECT_EQ(harness.scheduler.free_pages(), 6);
  EXPECT_FALSE(harness.scheduler.empty());
  harness.Apply();
  EXPECT_EQ(harness.scheduler.free_pages(), 10);
  EXPECT_TRUE(harness.scheduler.empty());
  EXPECT_TRUE(harness.tokens[1].empty());
  EXPECT_FALSE(harness.scheduler.Cancel(RequestId{1}));
}

TEST(Scheduler, CancelWithNothingInFlightFreesThePagesAtOnce) {
  SchedulerHarness harness;
  harness.Add(1, 200, 20);
  harness.Plan();
  harness.Apply();
  EXPECT_TRUE(harness.scheduler.Cancel(RequestId{1}));
  EXPECT_EQ(harness.scheduler.free_pages(), 10);
  EXPECT_TRUE(harness.scheduler.empty());
}

TEST(Scheduler, FailedRowEndsThatRequestOnly) {
  SchedulerHarness harness;
  harness.Add(1, 20, 5);
  harness.Add(2, 20, 5);
  harness.fails[1] = 20;
  harness.RunToTheEnd();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kFailed);
  EXPECT_TRUE(harness.tokens[1].empty());
  EXPECT_EQ(harness.ends[2], SequenceEnd::kLength);
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(20, 5));
}

// As when a grammar takes too long for the drafts behind an answer's last token.
TEST(Scheduler, WhatFailsBehindItsEndHasEnded) {
  SchedulerHarness harness;
  harness.Add(1, 20, 5);
  harness.fail_late = {1};
  harness.RunToTheEnd();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kLength);
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(20, 5));
}

// Request 2 is preempted with two rows in flight; before they are done, others leave pages enough
// for it to come back. Its slot and its pages are still in use then.
TEST(Scheduler, PreemptedRequestDoesNotReturnBeforeItsRowsInFlightAreDone) {
  SchedulerHarness harness({.max_num_seqs = 5,
                            .max_num_batched_tokens = 512,
                            .prefill_chunk = 256,
                            .num_pages = 12,
                            .max_model_len = 512,
                            .absorbed_limit = 512,
                            .depth = 3});
  // The second page that each comes to need is needed in decode 66 (of 1), 67 (of 0 and 4), and
  // later; decode 65 is the last one of 3.
  harness.Add(0, 62, 200);
  harness.Add(1, 191, 200);
  harness.Add(4, 62, 200);
  harness.Add(3, 45, 66);
  harness.Add(2, 55, 200);
  for (int step = 0; step <= 64; ++step) {
    EXPECT_EQ(harness.Plan().rows.size(), 5u);
    harness.Apply();
  }
  EXPECT_EQ(harness.scheduler.free_pages(), 0);
  harness.Plan();
  EXPECT_EQ(harness.Plan().rows.size(), 3u);  // 1 waits for a page of 3, which has ended
  EXPECT_TRUE(harness.Plan().rows.empty());   // 0 and 1 for both of its pages; 4 preempts 2
  const Sequence& second = harness.scheduler.sequence(RequestId{2});
  EXPECT_EQ(second.state, SequenceState::kWaiting);
  harness.Apply();
  EXPECT_TRUE(harness.scheduler.Cancel(RequestId{1}));
  ASSERT_EQ(second.rows_in_flight, 1);
  ASSERT_GE(harness.scheduler.free_pages(), PagesFor(second.length()) + 2 + 2);  // there is room
  harness.Plan();
  EXPECT_TRUE(harness.openings.empty());
  harness.Apply();
  ASSERT_EQ(second.rows_in_flight, 0);
  harness.Plan();
  ASSERT_EQ(harness.openings.size(), 1u);
  EXPECT_EQ(harness.openings[0].request, RequestId{2});
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(55, 200));
}

// One that comes later and goes before: it enters first, though it is of the same client, and is
// not the one that is preempted.
TEST(SchedulerPreemption, PriorityComesBeforeTurns) {
  SchedulerOptions options = SmallOptions();  // 10 pages
  options.max_num_seqs = 2;
  SchedulerHarness harness(options);
  harness.Add(1, 250, 200);
  harness.Plan();
  harness.Add(2, 250, 200);
  harness.Add(3, Params(250, 200), 0, {}, -5);
  std::vector<RequestId> entered;
  for (int step = 0; step < 4; ++step) {
    if (harness.full()) harness.Apply();
    for (const SlotOpening& opening : (harness.PlanGroups(), harness.openings)) {
      entered.push_back(opening.request);
    }
  }
  EXPECT_EQ(entered, std::vector<RequestId>{RequestId{3}});
  harness.RunToTheEnd();
  EXPECT_GT(harness.scheduler.preemptions(), 0);
  EXPECT_EQ(harness.entered[3], 1) << "others give way to it";
  EXPECT_GT(harness.entered[1], 1);
}

}  // namespace
}  // namespace fathom
