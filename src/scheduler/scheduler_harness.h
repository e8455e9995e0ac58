// A scheduler that is turned by hand, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
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
          .absorbed_limit = 512,
          .depth = 2};
}

inline RequestParams Params(int32_t prompt_tokens, int32_t max_tokens) {
  RequestParams params;
  for (int32_t i = 0; i < prompt_tokens; ++i) params.prompt.push_back(TokenId{i});
  params.stop_tokens = {kStopToken};
  params.max_tokens = max_tokens;
  return params;
}

// Turns a scheduler by hand and plays the device, which alone knows where a decode begins: the
// token at position p is 1000 + p unless told otherwise, and as many of a decode's drafts stand as
// it is told. Every plan is held against what is promised of all.
class SchedulerHarness {
 public:
  explicit SchedulerHarness(const SchedulerOptions& options = SmallOptions())
      : scheduler(options),
        slots_(static_cast<size_t>(options.groups),
               std::vector<Slot>(static_cast<size_t>(options.max_num_seqs))) {}

  void Add(uint64_t id, int32_t prompt_tokens, int32_t max_tokens, uint64_t client = 0) {
    Add(id, Params(prompt_tokens, max_tokens), client);
  }
  void Add(uint64_t id, RequestParams params, uint64_t client = 0, const std::string& salt = {},
           int32_t priority = 0) {
    asked_[id] = params;
    scheduler.Add(RequestId{id}, std::make_shared<const RequestParams>(std::move(params)), client,
                  salt, priority);
  }
  // Plans a step, in flight until Apply(); no rows: nothing could run. Of one group: its part.
  StepPlan Plan() {
    EXPECT_EQ(scheduler.options().groups, 1);
    const StepPlans plans = PlanGroups();
    return plans.empty() ? StepPlan() : plans.groups[0];
  }
  StepPlans PlanGroups() {
    StepPlans plans = scheduler.Plan();
    openings.clear();
    for (const StepPlan& plan : plans.groups) {
      openings.insert(openings.end(), plan.openings.begin(), plan.openings.end());
      ExpectSound(plan);
    }
    for (const SlotOpening& opening : openings) {
      ++entered[Raw(opening.request)];
      EXPECT_EQ(*opening.params, asked_.at(Raw(opening.request)));
    }
    if (plans.has_rows()) in_flight.push_back(plans);
    scheduler.CheckIntegrity();
    return plans;
  }
  void Apply() {
    const StepPlans plans = in_flight.front();
    in_flight.pop_front();
    std::vector<RowOutcome> outcomes;
    for (size_t group = 0; group < plans.groups.size(); ++group) {
      std::vector<Slot>& slots = slots_[group];
      for (const SlotOpening& opening : plans.groups[group].openings) {
        slots.at(Raw(opening.slot)) = {.opening = opening,
                                       .length = opening.length,
                                       .generated = static_cast<int64_t>(opening.generated.size())};
      }
      for (const StepRow& row : plans.groups[group].rows) {
        outcomes.push_back(Run(row, slots.at(Raw(row.slot))));
      }
    }
    const std::vector<StepRow> rows = plans.Rows();
    const auto effects = scheduler.Apply(plans.step(), rows, outcomes);
    for (size_t i = 0; i < effects.size(); ++i) {
      const uint64_t id = Raw(rows[i].request);
      if (effects[i].counts) {
        tokens[id].insert(tokens[id].end(), outcomes[i].tokens.begin(), outcomes[i].tokens.end());
      }
      if (effects[i].counts) cached[id] = effects[i].cached_tokens;
      if (effects[i].counts) preempted[id] = effects[i].preemptions;
      if (effects[i].end) ends[id] = *effects[i].end;
    }
    scheduler.CheckIntegrity();
  }
  // Plans one step, after applying as many as that takes.
  void Turn() {
    if (full()) Apply();
    while (PlanGroups().empty()) Apply();
  }
  void RunToTheEnd() {
    for (int steps = 0; !scheduler.empty(); ++steps) {
      ASSERT_LT(steps, 10000);
      while (!full() && !PlanGroups().empty()) {
      }
      Apply();
    }
    EXPECT_EQ(scheduler.free_pages(), scheduler.num_pages());
  }
  bool full() const { return in_flight.size() == static_cast<size_t>(scheduler.options().depth); }
  // The tokens of a request that nothing stops early.
  static std::vector<TokenId> Plain(int32_t prompt_tokens, int32_t n) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < n; ++i) tokens.push_back(TokenId{1000 + prompt_tokens + i});
    return tokens;
  }

  Scheduler scheduler;
  std::deque<StepPlans> in_flight;
  std::vector<SlotOpening> openings;  // of the last step
  std::map<uint64_t, int> entered;    // how often each request entered a slot
  std::map<std::pair<uint64_t, int32_t>, TokenId> say;
  std::map<uint64_t, int32_t> accepts;  // drafts of each of a request's decodes, if it has so many
  std::map<uint64_t, int32_t> fails;    // the position whose token cannot be drawn
  std::set<uint64_t> fail_late;         // with the token that ends them
  std::map<uint64_t, std::vector<TokenId>> tokens;
  std::map<uint64_t, SequenceEnd> ends;
  std::map<uint64_t, int32_t> cached;     // tokens of each prompt
  std::map<uint64_t, int32_t> preempted;  // how often

 private:
  // What a device keeps.
  struct Slot {
    SlotOpening opening;
    int32_t length = 0;     // positions computed
    int64_t generated = 0;  // tokens, in all lives
    bool ended = false;
    int32_t pages = 0;
  };

  TokenId TokenAt(uint64_t id, int32_t position) const {
    const auto said = say.find({id, position});
    return said == say.end() ? TokenId{1000 + position} : said->second;
  }

  RowOutcome Run(const StepRow& row, Slot& slot) {
    const RequestParams& params = *slot.opening.params;
    EXPECT_EQ(slot.opening.request, row.request);
    EXPECT_EQ(row.first_new_page, slot.pages);
    slot.pages += static_cast<int32_t>(row.new_pages.size());
    int32_t live = row.num_tokens(), accepted = 0;
    if (row.is_decode()) {
      const int32_t left = slot.opening.final_length - 1 - slot.length;
      live = slot.ended ? 0 : std::min(live, left);
      accepted = std::max(std::min(accepts[Raw(row.request)], live - 1), 0);
    } else {
      ExpectTokens(row, slot);
    }
    EXPECT_LE(PagesFor(slot.length + live), slot.pages);
    RowOutcome outcome;
    if (!row.is_decode()) slot.length += live - row.samples;
    for (int32_t i = 0; row.samples && live > 0 && i <= accepted && !slot.ended; ++i) {
      const auto fail = fails.find(Raw(row.request));
      outcome.failed = fail != fails.end() && fail->second == slot.length + 1;
      if (outcome.failed) {
        slot.ended = true;
        break;
      }
      outcome.tokens.push_back(TokenAt(Raw(row.request), ++slot.length));
      const auto& stops = params.stop_tokens;
      const bool stops_now =
          ++slot.generated > params.min_tokens &&
          std::find(stops.begin(), stops.end(), outcome.tokens.back()) != stops.end();
      slot.ended = stops_now || slot.length + 1 == slot.opening.final_length;
      outcome.failed = slot.ended && fail_late.contains(Raw(row.request));
    }
    return outcome;
  }

  void ExpectTokens(const StepRow& row, const Slot& slot) const {
    const std::vector<TokenId>& prompt = slot.opening.params->prompt;
    EXPECT_EQ(row.begin, slot.length);
    for (int32_t t = 0; t < row.num_tokens(); ++t) {
      const auto at = static_cast<size_t>(row.begin + t);
      EXPECT_EQ(row.tokens[t],
                at < prompt.size() ? prompt[at] : TokenAt(Raw(row.request), row.begin + t));
    }
  }

  // Told in other words than base/attention_form.h tells it.
  AttentionForm FormAt(const StepRow& row, uint64_t id, int32_t position) const {
    if (scheduler.options().reuse_decoded) {
      const bool longer = row.num_tokens() > scheduler.options().absorbed_limit;
      return longer ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
    }
    const auto prompt = static_cast<int32_t>(asked_.at(id).prompt.size());
    const int32_t chunk = scheduler.options().prefill_chunk;
    int64_t of_the_prompt = 0;  // of the position's chunk
    for (int32_t at = 0; at < prompt; ++at) of_the_prompt += at / chunk == position / chunk;
    const bool expanded = position < prompt && of_the_prompt > scheduler.options().absorbed_limit;
    return expanded ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
  }

  static int PlaceOf(const StepRow& row) {
    if (row.is_decode()) return 2;
    return row.form == AttentionForm::kExpanded ? 0 : 1;
  }

  void ExpectSound(const StepPlan& plan) const {
    EXPECT_LE(plan.num_tokens(), scheduler.options().max_num_batched_tokens);
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const StepRow& row = plan.rows[i];
      const uint64_t id = Raw(row.request);
      const auto prompt = static_cast<int32_t>(asked_.at(id).prompt.size());
      EXPECT_LE(PlaceOf(plan.rows[i > 0 ? i - 1 : 0]), PlaceOf(row));
      EXPECT_EQ(row.is_decode(), row.begin == kAtSlot);
      EXPECT_LE(row.drafts, row.is_decode() ? scheduler.options().max_drafts : 0);
      const int32_t last = row.is_decode() ? prompt : row.begin + row.num_tokens() - 1;
      EXPECT_EQ(row.begin >= 0 && row.begin < prompt, last < prompt) << "across the prompt's end";
      for (int32_t at = std::max(row.begin, 0); at <= last && !row.is_decode(); ++at) {
        EXPECT_EQ(row.form, FormAt(row, id, at)) << "request " << id << " position " << at;
      }
      EXPECT_TRUE(!row.is_decode() || row.form == AttentionForm::kAbsorbed);
    }
  }

  std::vector<std::vector<Slot>> slots_;  // [group][slot]
  std::map<uint64_t, RequestParams> asked_;
};

// (begin, tokens) of a plan's rows.
using Spans = std::vector<std::pair<int32_t, int32_t>>;
inline Spans SpansOf(const StepPlan& plan) {
  Spans spans;
  for (const StepRow& row : plan.rows) spans.emplace_back(row.begin, row.num_tokens());
  return spans;
}

}  // namespace fathom
