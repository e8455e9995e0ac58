// Rows that may bring several tokens, and the forms of rows.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scheduler_harness.h"

namespace fathom {
namespace {

SchedulerOptions WithDrafts(int32_t drafts, int32_t depth = 2) {
  SchedulerOptions options = SmallOptions();
  options.max_drafts = drafts;
  options.depth = depth;
  return options;
}

std::string FormsOf(const StepPlan& plan) {
  std::string forms;
  for (const StepRow& row : plan.rows) {
    forms += row.form == AttentionForm::kExpanded ? 'e' : 'a';
  }
  return forms;
}

// The prompt's parts of its chunks have 128, 128 and 44 tokens.
TEST(SchedulerForms, PartsOfChunksAreExpandedAboveTheLimit) {
  const std::vector<std::pair<int64_t, std::string>> cases = {
      {0, "eee"}, {43, "eee"}, {44, "eea"}, {45, "eea"}, {127, "eea"}, {128, "aaa"}, {129, "aaa"}};
  for (const auto& [limit, expected] : cases) {
    SchedulerOptions options = SmallOptions();
    options.absorbed_limit = limit;
    SchedulerHarness harness(options);
    harness.Add(1, 300, 5);
    std::string forms;
    for (int chunk = 0; chunk < 3; ++chunk) {
      forms += FormsOf(harness.Plan());
      harness.Apply();
    }
    EXPECT_EQ(forms, expected) << limit;
    EXPECT_EQ(FormsOf(harness.Plan()), "a") << "a decode";
    harness.RunToTheEnd();
  }
}

// What it generated before comes after the prompt in rows of its own, up to a chunk long, and
// absorbed whatever their length.
TEST(SchedulerForms, TokensComputedAgainKeepTheirForm) {
  for (const int32_t prompt : {127, 128, 129, 250}) {
    SchedulerOptions options = SmallOptions();
    options.absorbed_limit = 3;
    SchedulerHarness harness(options);
    harness.Add(1, 250, 200);
    harness.Add(2, prompt, 260);
    Spans spans;
    std::string forms;
    int32_t known = 0;
    while (!harness.scheduler.empty()) {
      while (!harness.full()) {
        const StepPlan plan = harness.Plan();
        if (plan.rows.empty()) break;
        for (const SlotOpening& opening : plan.openings) {
          if (opening.request != RequestId{2}) continue;
          known = prompt + static_cast<int32_t>(opening.generated.size());
          spans.clear();
          forms.clear();
        }
        for (const StepRow& row : plan.rows) {
          if (row.request != RequestId{2} || row.is_decode()) continue;
          spans.emplace_back(row.begin, row.num_tokens());
          forms += row.form == AttentionForm::kExpanded ? 'e' : 'a';
        }
      }
      harness.Apply();
    }
    ASSERT_GE(harness.entered[2], 2);
    ASSERT_GT(known, prompt + 3);
    Spans expected;
    std::string expected_forms;
    for (int32_t at = 0; at < known;) {
      int32_t end = (at / 128 + 1) * 128;
      end = std::min(end, at < prompt ? prompt : known);
      expected.emplace_back(at, end - at);
      expected_forms += at < prompt && end - at > 3 ? 'e' : 'a';
      at = end;
    }
    EXPECT_EQ(spans, expected) << prompt;
    EXPECT_EQ(forms, expected_forms) << prompt;
    EXPECT_EQ(harness.tokens[2], SchedulerHarness::Plain(prompt, 260));
  }
}

// However many drafts stand, the text is the same; only the number of steps is not.
TEST(SchedulerDrafts, TextIsTheSameWhateverIsAccepted) {
  for (int32_t depth = 1; depth <= 4; ++depth) {
    for (int32_t drafts = 0; drafts <= 4; ++drafts) {
      for (int32_t accepted = 0; accepted <= drafts; ++accepted) {
        SchedulerOptions options = WithDrafts(drafts, depth);
        options.num_pages = 8;  // few enough for preemptions
        SchedulerHarness harness(options);
        for (uint64_t id = 1; id <= 4; ++id) {
          harness.accepts[id] = id == 3 ? 0 : accepted;
          harness.Add(id, 60, 400);
        }
        harness.RunToTheEnd();
        EXPECT_GE(harness.scheduler.preemptions(), 1);
        for (uint64_t id = 1; id <= 4; ++id) {
          EXPECT_EQ(harness.tokens[id], SchedulerHarness::Plain(60, 400)) << id;
          EXPECT_EQ(harness.ends[id], SequenceEnd::kLength);
        }
      }
    }
  }
}

TEST(SchedulerDrafts, AcceptedDraftsSaveSteps) {
  const auto steps = [](int32_t accepted) {
    SchedulerHarness harness(WithDrafts(4, /*depth=*/1));
    harness.accepts[1] = accepted;
    harness.Add(1, 10, 101);
    int steps = 0;
    for (; !harness.scheduler.empty(); ++steps) {
      harness.Plan();
      harness.Apply();
    }
    return steps;
  };
  EXPECT_EQ(steps(0), 1 + 100);
  EXPECT_EQ(steps(1), 1 + 50);
  EXPECT_EQ(steps(4), 1 + 20);
}

// Positions 0..60 are known to be computed once the prompt is; a decode of five tokens may end at
// 64, and the one after it, which is planned before its result, at 69.
TEST(SchedulerDrafts, PagesAreReservedForTheMost) {
  SchedulerHarness harness(WithDrafts(4));
  harness.Add(1, 60, 100);
  EXPECT_EQ(harness.Plan().rows[0].new_pages.size(), 1u);
  const StepPlan decode = harness.Plan();
  EXPECT_EQ(decode.rows[0].drafts, 4);
  EXPECT_EQ(decode.rows[0].first_new_page, 1);
  EXPECT_EQ(decode.rows[0].new_pages.size(), 1u);
  const Sequence& seq = harness.scheduler.sequence(RequestId{1});
  EXPECT_EQ(seq.planned_least(), 61);
  EXPECT_EQ(seq.planned_most(), 65);
  harness.Apply();
  EXPECT_TRUE(harness.Plan().rows[0].new_pages.empty());
  EXPECT_EQ(seq.planned_least(), 62);
  EXPECT_EQ(seq.planned_most(), 70);
  harness.Apply();  // one token of five
  EXPECT_EQ(seq.planned_least(), 62);
  EXPECT_EQ(seq.planned_most(), 66);
}

TEST(SchedulerDrafts, ReservationsEndWhereTheRequestDoes) {
  for (const int32_t max_tokens : {1, 2, 3, 4, 5, 6}) {
    SchedulerHarness harness(WithDrafts(4, /*depth=*/4));
    harness.Add(1, 60, max_tokens);
    while (!harness.full() && !harness.Plan().rows.empty()) {
    }
    // Only the token at final_length - 1 is never computed.
    const int32_t pages = max_tokens <= 5 ? 1 : 2;
    EXPECT_EQ(harness.scheduler.free_pages(), 10 - pages) << max_tokens;
    for (const StepPlans& plans : harness.in_flight) {
      const StepRow& row = plans.groups[0].rows[0];
      EXPECT_LE(row.drafts, std::max(max_tokens - 2, 0)) << "the first decode has max_tokens - 1";
    }
    harness.RunToTheEnd();
    EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(60, max_tokens));
  }
}

// The least is what counts: rows are planned until the tokens are surely in flight, and the device
// finds nothing live in those that turn out to be too many.
TEST(SchedulerDrafts, RowsThatTurnOutTooManyBringNothing) {
  SchedulerHarness harness(WithDrafts(4, /*depth=*/4));
  harness.accepts[1] = 4;
  harness.Add(1, 10, 6);  // the prompt's token, and one row of five
  for (int i = 0; i < 4; ++i) EXPECT_EQ(harness.Plan().rows.size(), 1u);
  harness.Apply();
  harness.Apply();
  EXPECT_EQ(harness.ends[1], SequenceEnd::kLength);
  EXPECT_FALSE(harness.scheduler.empty()) << "two rows are in flight";
  EXPECT_EQ(harness.scheduler.free_pages(), 9);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(10, 6));
}

TEST(SchedulerDrafts, StopTokenEndsARequestWithinARow) {
  for (int32_t depth = 1; depth <= 4; ++depth) {
    SchedulerHarness harness(WithDrafts(4, depth));
    RequestParams params = Params(10, 100);
    params.min_tokens = 4;
    harness.accepts[1] = 4;
    harness.say[{1, 12}] = kStopToken;  // the third token: it must not end it
    harness.say[{1, 17}] = kStopToken;  // the eighth, in the middle of a row
    harness.Add(1, params);
    harness.RunToTheEnd();
    EXPECT_EQ(harness.ends[1], SequenceEnd::kStop);
    std::vector<TokenId> expected = SchedulerHarness::Plain(10, 8);
    expected[2] = expected[7] = kStopToken;
    EXPECT_EQ(harness.tokens[1], expected);
  }
}

// What stood before the failure counts, as it would have without drafts.
TEST(SchedulerDrafts, RowThatFailsBringsWhatStoodBefore) {
  for (int32_t accepted = 0; accepted <= 4; ++accepted) {
    SchedulerHarness harness(WithDrafts(4));
    harness.accepts[1] = accepted;
    harness.fails[1] = 14;
    harness.Add(1, 10, 100);
    harness.RunToTheEnd();
    EXPECT_EQ(harness.ends[1], SequenceEnd::kFailed);
    EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(10, 4));
  }
}

TEST(SchedulerDrafts, ContextsEndIsTheEnd) {
  for (int32_t accepted = 0; accepted <= 4; ++accepted) {
    SchedulerHarness harness(WithDrafts(4, /*depth=*/3));
    harness.accepts[1] = accepted;
    harness.Add(1, 490, 1000);
    harness.RunToTheEnd();
    EXPECT_EQ(harness.ends[1], SequenceEnd::kLength);
    EXPECT_EQ(harness.tokens[1], SchedulerHarness::Plain(490, 22));
  }
}

TEST(SchedulerDrafts, BudgetIsSharedEqually) {
  SchedulerOptions options = WithDrafts(4);
  options.prefill_chunk = 16;
  const std::vector<std::pair<int32_t, int32_t>> cases = {{16, 3}, {20, 4}, {24, 4}, {19, 3}};
  for (const auto& [budget, drafts] : cases) {
    options.max_num_batched_tokens = budget;
    SchedulerHarness harness(options);
    for (uint64_t id = 1; id <= 4; ++id) harness.Add(id, 4, 50);
    StepPlan plan = harness.Plan();
    while (plan.rows.size() < 4 || !plan.rows.front().is_decode()) {
      harness.Apply();
      plan = harness.Plan();
    }
    for (const StepRow& row : plan.rows) EXPECT_EQ(row.drafts, drafts) << budget;
    harness.RunToTheEnd();
  }
}

// Both have a page, full up to four positions, and there is no third.
TEST(SchedulerDrafts, DraftsShrinkToThePagesThatAreFree) {
  SchedulerOptions options = WithDrafts(4, /*depth=*/1);
  options.num_pages = 3;
  SchedulerHarness harness(options);
  harness.Add(1, 60, 8);
  harness.Add(2, 60, 5);
  harness.Plan();
  harness.Apply();
  ASSERT_EQ(harness.scheduler.running(), 2);
  const StepPlan plan = harness.Plan();
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_EQ(plan.rows[0].drafts, 4) << "with the page that was free";
  EXPECT_EQ(plan.rows[1].drafts, 3) << "up to the end of its page";
  EXPECT_EQ(harness.scheduler.preemptions(), 0);
  harness.RunToTheEnd();
  EXPECT_EQ(harness.scheduler.preemptions(), 0);
}

// The older request could use the last free page for a draft; the younger needs it for its token.
TEST(SchedulerDrafts, EverybodysTokenComesBeforeAnybodysDrafts) {
  SchedulerOptions options = WithDrafts(4, /*depth=*/1);
  options.num_pages = 3;
  SchedulerHarness harness(options);
  harness.Add(1, 60, 40);
  harness.Add(2, 64, 40);
  harness.Plan();
  harness.Apply();
  ASSERT_EQ(harness.scheduler.running(), 2);
  ASSERT_EQ(harness.scheduler.free_pages(), 1);
  const StepPlan plan = harness.Plan();
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_EQ(plan.rows[0].drafts, 3);
  EXPECT_EQ(plan.rows[1].new_pages.size(), 1u);
  EXPECT_EQ(plan.rows[1].drafts, 4);
  EXPECT_EQ(harness.scheduler.preemptions(), 0);
  harness.RunToTheEnd();
}

// There is a mask for each of them.
TEST(SchedulerDrafts, AMaskedRequestHasThemToo) {
  SchedulerHarness harness(WithDrafts(3));
  RequestParams params = Params(10, 20);
  params.masked = true;
  harness.Add(1, params);
  harness.Add(2, 10, 20);
  harness.Plan();
  harness.Apply();
  for (const StepRow& row : harness.Plan().rows) {
    EXPECT_TRUE(row.is_decode());
    EXPECT_EQ(row.masked, row.request == RequestId{1});
    EXPECT_EQ(row.drafts, 3);
  }
  harness.Apply();
  harness.RunToTheEnd();
}

}  // namespace
}  // namespace fathom
