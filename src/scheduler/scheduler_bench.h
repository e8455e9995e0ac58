// A scheduler that is turned by hand, for tests.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace fathom {

inline constexpr TokenId kStopToken{999};

// 4 slots, chunks of 128, 10 pages, contexts up to 512.
inline SchedulerOptions SmallOptions() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 256,
          .prefill_chunk = 128,
          .num_pages = 10,
          .max_model_len = 512,
          .depth = 2};
}

inline SequenceSpec Spec(uint64_t id, int32_t prompt_tokens, int32_t max_tokens) {
  SequenceSpec spec;
  spec.id = RequestId{id};
  for (int32_t i = 0; i < prompt_tokens; ++i) spec.prompt.push_back(TokenId{i});
  spec.stop_tokens = {kStopToken};
  spec.max_tokens = max_tokens;
  return spec;
}

// Turns a scheduler by hand; the token at position p is 1000 + p unless told otherwise.
class SchedulerBench {
 public:
  explicit SchedulerBench(const SchedulerOptions& options = SmallOptions()) : scheduler(options) {}

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
inline Spans SpansOf(const StepPlan& plan) {
  Spans spans;
  for (const StepRow& row : plan.rows) spans.emplace_back(row.position, row.num_tokens);
  return spans;
}

}  // namespace fathom
