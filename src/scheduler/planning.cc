// Scheduler::Plan(): which rows the next step has.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace fathom {
namespace {

// Where a row stands in its step (StepPlan): expanded, absorbed, decode.
int PlaceOf(const StepRow& row) {
  return row.form == AttentionForm::kExpanded ? 0 : row.is_decode() ? 2 : 1;
}

}  // namespace

StepPlan Scheduler::Plan() {
  CHECK(in_flight_.size() < static_cast<size_t>(options_.depth), "{} steps are in flight",
        in_flight_.size());
  StepPlan plan;
  const int32_t held_back = prefill_left_out_ ? OldestPrefillTokens() : 0;
  const int32_t decoded = PlanDecodes(options_.max_num_batched_tokens - held_back, plan);
  PlanPrefills(options_.max_num_batched_tokens - decoded, plan);
  if (plan.rows.empty()) {
    CHECK(!in_flight_.empty() || empty(), "requests, nothing in flight, and nothing can run");
    return plan;
  }
  std::stable_sort(plan.rows.begin(), plan.rows.end(), [](const StepRow& a, const StepRow& b) {
    if (PlaceOf(a) != PlaceOf(b)) return PlaceOf(a) < PlaceOf(b);
    return !a.is_decode() && a.num_tokens() < b.num_tokens();
  });
  plan.step = next_step_++;
  in_flight_.push_back(plan.step);
  return plan;
}

// Returns how many tokens it planned.
int32_t Scheduler::PlanDecodes(int32_t budget, StepPlan& plan) {
  std::vector<Sequence*> oldest_first;  // a copy: preemption changes running_
  for (Sequence* seq : running_) {
    if (!seq->prefilling() && !seq->fully_planned() && !seq->held_in_lockstep()) {
      oldest_first.push_back(seq);
    }
  }
  int32_t planned = 0, pages_owed = 0;
  for (Sequence* seq : oldest_first) {
    if (planned == budget) break;
    if (seq->state != SequenceState::kRunning || !ReserveToken(*seq, pages_owed)) continue;
    ++seq->tokens_in_flight;
    AddRow(*seq, {.samples = true}, plan);
    ++planned;
  }
  if (planned == 0) return 0;
  const int32_t room = std::min(budget / planned - 1, options_.max_drafts);  // of each
  for (StepRow& row : plan.rows) planned += AddDrafts(room, row);
  return planned;
}

// Gives a decode that has its token up to `drafts` drafts too, and returns how many: none of them
// costs another request its pages.
int32_t Scheduler::AddDrafts(int32_t drafts, StepRow& row) {
  Sequence& seq = *sequences_.at(row.request);
  const int32_t last = seq.final_length - 1;  // the token there is sampled, never computed
  for (drafts = std::min(drafts, last - seq.planned_least()); drafts > 0; --drafts) {
    const int32_t needed = PagesFor(std::min(seq.planned_most() + drafts, last)) -
                           static_cast<int32_t>(seq.pages.size());
    if (needed <= 0 || pool_.Allocate(needed, seq.pages)) break;
  }
  row.drafts = drafts;
  seq.tokens_in_flight += drafts;
  HandOverPages(seq, row);
  return drafts;
}

void Scheduler::PlanPrefills(int32_t budget, StepPlan& plan) {
  bool planned = false;
  prefill_left_out_ = false;
  const auto plan_chunk = [&](Sequence& seq) {
    const int32_t tokens = PrefillTokens(seq.prefilled, seq.prompt_size(), seq.prefill_end);
    if (tokens > budget) {
      prefill_left_out_ |= !planned;
      return;
    }
    AddPrefill(seq, tokens, plan);
    budget -= tokens;
    planned = true;
  };
  for (Sequence* seq : running_) {
    if (seq->prefilling() && !seq->held_in_lockstep()) plan_chunk(*seq);
  }
  while (HeadCanOpen()) {
    Sequence& seq = *waiting_.front();
    if (PrefillTokens(0, seq.prompt_size(), seq.length()) > budget) {
      prefill_left_out_ |= !planned;
      break;
    }
    OpenSlot(seq, plan);
    plan_chunk(seq);
  }
}

// Tokens of the row that starts at `begin`: up to the next multiple of prefill_chunk, whatever the
// budget, and never across the prompt's end, so that all of them are of one form.
int32_t Scheduler::PrefillTokens(int32_t begin, int32_t prompt_end, int32_t prefill_end) const {
  const int32_t border = begin + options_.prefill_chunk - begin % options_.prefill_chunk;
  return std::min(border, begin < prompt_end ? prompt_end : prefill_end) - begin;
}

int32_t Scheduler::OldestPrefillTokens() const {
  for (const Sequence* seq : running_) {
    if (seq->prefilling() && !seq->held_in_lockstep()) {
      return PrefillTokens(seq->prefilled, seq->prompt_size(), seq->prefill_end);
    }
  }
  if (!HeadCanOpen()) return 0;
  const Sequence& head = *waiting_.front();
  return PrefillTokens(0, head.prompt_size(), head.length());
}

// Leaves a page for each running request, or its next decode would preempt the newcomer.
bool Scheduler::HeadCanOpen() const {
  if (waiting_.empty() || free_slots_.empty()) return false;
  const Sequence& head = *waiting_.front();
  return head.rows_in_flight == 0 &&
         pool_.free_pages() >= PagesFor(head.length()) + static_cast<int64_t>(running_.size());
}

void Scheduler::OpenSlot(Sequence& seq, StepPlan& plan) {
  waiting_.pop_front();
  turn_ = std::max(turn_, seq.turn);
  running_.push_back(&seq);
  seq.state = SequenceState::kRunning;
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  seq.prefill_end = seq.length();
  seq.prefilled = 0;
  seq.pages_planned = 0;
  const bool allocated = pool_.Allocate(PagesFor(seq.prefill_end), seq.pages);
  CHECK(allocated, "{} pages for request {}", PagesFor(seq.prefill_end), Raw(seq.id));
  plan.openings.push_back({.slot = seq.slot,
                           .request = seq.id,
                           .params = seq.params,
                           .generated = seq.generated,
                           .final_length = seq.final_length});
}

// Sees to it that the token which `seq` decodes next has a page wherever it turns out to stand.
// False if it must sit this step out: it waits for pages that steps in flight still hold
// (`pages_owed` counts those promised in this plan), or it was itself the one to preempt.
bool Scheduler::ReserveToken(Sequence& seq, int32_t& pages_owed) {
  const int32_t needed = PagesFor(std::min(seq.planned_most() + 1, seq.final_length - 1)) -
                         static_cast<int32_t>(seq.pages.size());
  while (needed > 0 && !pool_.Allocate(needed, seq.pages)) {
    if (PagesSoonFree() >= pages_owed + needed) {
      pages_owed += needed;
      return false;
    }
    const auto victim = std::find_if(running_.rbegin(), running_.rend(),
                                     [](const Sequence* s) { return !s->fully_planned(); });
    const bool is_self = *victim == &seq;  // there is one: `seq` itself at the latest
    Preempt(**victim);
    if (is_self) return false;
  }
  return true;
}

// Pages that come back without preempting anyone, once the steps in flight have completed.
int32_t Scheduler::PagesSoonFree() const {
  int32_t pages = 0;
  for (const auto& [id, seq] : sequences_) {
    const bool leaving = seq->state != SequenceState::kRunning || seq->fully_planned();
    if (leaving) pages += static_cast<int32_t>(seq->pages.size());
  }
  return pages;
}

void Scheduler::AddPrefill(Sequence& seq, int32_t tokens, StepPlan& plan) {
  const int32_t begin = seq.prefilled, end = begin + tokens, prompt_end = seq.prompt_size();
  StepRow row{
      .form = FormOfToken(begin, prompt_end, options_.prefill_chunk, options_.absorbed_limit),
      .begin = begin,
      .samples = end == seq.prefill_end};
  for (int32_t at = begin; at < end; ++at) row.tokens.push_back(seq.token(at));
  const int32_t prompt_planned = std::min(end, prompt_end);
  if (prompt_planned > seq.prompt_planned) {  // else it was preempted, and has reported already
    row.prompt_logprobs = seq.params->prompt_logprobs >= 0 && begin < prompt_end - 1;
    prompt_tokens_ += prompt_planned - seq.prompt_planned;
    seq.prompt_planned = prompt_planned;
  }
  seq.prefilled = end;
  if (row.samples) ++seq.tokens_in_flight;
  AddRow(seq, std::move(row), plan);
}

void Scheduler::AddRow(Sequence& seq, StepRow row, StepPlan& plan) {
  row.slot = seq.slot;
  row.request = seq.id;
  row.first_new_page = seq.pages_planned;
  HandOverPages(seq, row);
  ++seq.rows_in_flight;
  seq.samples_in_flight += row.samples;
  plan.rows.push_back(std::move(row));
}

void Scheduler::HandOverPages(Sequence& seq, StepRow& row) {
  for (; seq.pages_planned < static_cast<int32_t>(seq.pages.size()); ++seq.pages_planned) {
    row.new_pages.push_back(seq.pages[static_cast<size_t>(seq.pages_planned)].id());
  }
}

}  // namespace fathom
