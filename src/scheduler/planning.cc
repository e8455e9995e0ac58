// Scheduler::Plan(): which rows the next step has.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace fathom {

PlannedStep Scheduler::Plan() {
  CHECK(in_flight_.size() < static_cast<size_t>(options_.depth), "{} steps are in flight",
        in_flight_.size());
  PlannedStep step;
  const int32_t held_back = prefill_left_out_ ? OldestPrefillTokens() : 0;
  const int32_t decodes = PlanDecodes(options_.max_num_batched_tokens - held_back, step.plan);
  PlanPrefills(options_.max_num_batched_tokens - decodes, step);
  if (step.plan.rows.empty()) {
    CHECK(!in_flight_.empty() || empty(), "requests, nothing in flight, and nothing can run");
    return step;
  }
  std::stable_sort(step.plan.rows.begin() + decodes, step.plan.rows.end(),
                   [](const StepRow& a, const StepRow& b) { return a.num_tokens < b.num_tokens; });
  step.plan.step = next_step_++;
  in_flight_.push_back(step.plan.step);
  return step;
}

// Returns how many rows, of a token each, it planned.
int32_t Scheduler::PlanDecodes(int32_t budget, StepPlan& plan) {
  int32_t planned = 0, pages_owed = 0;
  const std::vector<Sequence*> oldest_first = running_;  // preemption changes running_
  for (Sequence* seq : oldest_first) {
    if (planned == budget) break;
    if (seq->state != SequenceState::kRunning || seq->prefilling() || seq->fully_planned()) {
      continue;
    }
    if (!ReserveDecodePage(*seq, pages_owed)) continue;
    AddRow(*seq, 1, plan);
    ++planned;
  }
  return planned;
}

void Scheduler::PlanPrefills(int32_t budget, PlannedStep& step) {
  bool planned = false;
  prefill_left_out_ = false;
  const auto plan_chunk = [&](Sequence& seq) {
    const int32_t tokens = ChunkTokens(seq.planned, seq.prefill_end);
    if (tokens > budget) {
      prefill_left_out_ |= !planned;
      return;
    }
    AddRow(seq, tokens, step.plan);
    budget -= tokens;
    planned = true;
  };
  for (Sequence* seq : running_) {
    if (seq->prefilling()) plan_chunk(*seq);
  }
  while (HeadCanEnter()) {
    Sequence& seq = *waiting_.front();
    if (ChunkTokens(0, seq.length()) > budget) {
      prefill_left_out_ |= !planned;
      break;
    }
    Enter(seq, step.entries);
    plan_chunk(seq);
  }
}

// Tokens of the row that starts at `begin`: up to the next multiple of prefill_chunk, whatever the
// budget, so that the rows of a request do not depend on its company.
int32_t Scheduler::ChunkTokens(int32_t begin, int32_t prefill_end) const {
  return std::min(options_.prefill_chunk - begin % options_.prefill_chunk, prefill_end - begin);
}

int32_t Scheduler::OldestPrefillTokens() const {
  for (const Sequence* seq : running_) {
    if (seq->prefilling()) return ChunkTokens(seq->planned, seq->prefill_end);
  }
  return HeadCanEnter() ? ChunkTokens(0, waiting_.front()->length()) : 0;
}

// Leaves a page for each running request, or its next decode would preempt the newcomer.
bool Scheduler::HeadCanEnter() const {
  if (waiting_.empty() || free_slots_.empty()) return false;
  const Sequence& head = *waiting_.front();
  return head.rows_in_flight == 0 &&
         pool_.free_pages() >= PagesFor(head.length()) + static_cast<int64_t>(running_.size());
}

void Scheduler::Enter(Sequence& seq, std::vector<SlotEntry>& entries) {
  waiting_.pop_front();
  running_.push_back(&seq);
  seq.state = SequenceState::kRunning;
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  seq.prefill_end = seq.length();
  seq.planned = 0;
  seq.pages_planned = 0;
  const bool allocated = pool_.Allocate(PagesFor(seq.prefill_end), seq.pages);
  CHECK(allocated, "{} pages for request {}", PagesFor(seq.prefill_end), Raw(seq.spec.id));
  entries.push_back({seq.slot, seq.spec.id});
}

// Sees to it that the position that `seq` decodes next has a page. False if it must sit this step
// out: it waits for pages that steps in flight still hold (`pages_owed` counts those promised in
// this plan), or it was itself the one to preempt.
bool Scheduler::ReserveDecodePage(Sequence& seq, int32_t& pages_owed) {
  if (seq.planned < static_cast<int64_t>(seq.pages.size()) * kPageTokens) return true;
  while (!pool_.Allocate(1, seq.pages)) {
    if (PagesSoonFree() > pages_owed) {
      ++pages_owed;
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

void Scheduler::AddRow(Sequence& seq, int32_t num_tokens, StepPlan& plan) {
  StepRow row;
  row.slot = seq.slot;
  row.request = seq.spec.id;
  row.position = seq.planned;
  row.num_tokens = num_tokens;
  const int32_t end = seq.planned + num_tokens;
  if (seq.prefilling()) {
    for (int32_t at = seq.planned; at < end; ++at) row.tokens.push_back(seq.token(at));
    const int32_t prompt_end = std::min(end, seq.prompt_size());
    // A chunk that is computed again after a preemption has reported already.
    row.prompt_logprobs = seq.spec.prompt_logprobs && prompt_end > seq.prompt_planned &&
                          seq.planned < seq.prompt_size() - 1;
    if (prompt_end > seq.prompt_planned) {
      prompt_tokens_ += prompt_end - seq.prompt_planned;
      seq.prompt_planned = prompt_end;
    }
  }
  row.samples = end >= seq.prefill_end;
  row.first_new_page = seq.pages_planned;
  for (size_t i = seq.pages_planned; i < seq.pages.size(); ++i) {
    row.new_pages.push_back(seq.pages[i].id());
  }
  seq.pages_planned = static_cast<int32_t>(seq.pages.size());
  seq.planned = end;
  ++seq.rows_in_flight;
  seq.samples_in_flight += row.samples;
  plan.rows.push_back(std::move(row));
}

}  // namespace fathom
