// Scheduler::Plan(): which rows the next step has.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace fathom {
namespace {

// Where a row stands in its step (StepPlan): expanded, absorbed, decode.
int PlaceOf(const StepRow& row) {
  return row.form == AttentionForm::kExpanded ? 0 : row.is_decode() ? 2 : 1;
}

}  // namespace

StepPlans Scheduler::Plan() {
  CHECK(in_flight_.size() < static_cast<size_t>(options_.depth), "{} steps are in flight",
        in_flight_.size());
  for (Group& group : groups_) group.tokens_left = options_.max_num_batched_tokens;
  const bool hold_back = std::exchange(prefill_left_out_, false);
  const Entrance head = hold_back ? EntranceOfHead() : Entrance();
  std::vector<int32_t> held_back;
  for (const Group& group : groups_) {
    held_back.push_back(hold_back ? FirstPrefillTokens(group, head) : 0);
  }
  for (Group& group : groups_) PlanDecodes(group, held_back[static_cast<size_t>(group.number)]);
  for (Group& group : groups_) PlanPrefills(group);
  OpenSlots();
  if (hold_back) prefill_left_out_ = false;  // the next step is the decodes' again
  StepPlans plans = TakeParts();
  if (plans.has_rows()) last_with_rows_ = next_step_;
  // Every stage has a step with rows behind it once as many follow as there are stages after it.
  if (!last_with_rows_ || next_step_ - *last_with_rows_ >= static_cast<uint64_t>(options_.stages)) {
    CHECK(!in_flight_.empty() || empty(), "requests, nothing in flight, and nothing can run");
    return {};
  }
  if (plans.has_rows()) in_flight_.push_back(next_step_);
  ++next_step_;
  return plans;
}

int32_t Scheduler::FirstPrefillTokens(const Group& group, const Entrance& head) const {
  for (const Sequence* seq : group.running) {
    if (seq->prefilling()) {
      return PrefillTokens(*seq, seq->prefilled, seq->prefill_end);
    }
  }
  return head.group == &group ? head.tokens : 0;
}

// Those that may decode, by turn. Of several stages no more than a step's share of all that decode,
// so that the next steps have as many.
std::vector<Sequence*> Scheduler::DecodesOf(const Group& group) const {
  const auto stages = static_cast<uint64_t>(options_.stages);
  std::vector<Sequence*> ready;
  size_t all = 0;
  for (Sequence* seq : group.running) {
    if (seq->prefilling() || seq->fully_planned()) continue;
    ++all;
    if (next_step_ >= seq->sampled_in + stages) ready.push_back(seq);
  }
  ready.resize(std::min<size_t>(ready.size(), (all + stages - 1) / stages));
  return ready;
}

void Scheduler::PlanDecodes(Group& group, int32_t held_back) {
  const std::vector<Sequence*> by_turn = DecodesOf(group);  // preemption changes group.running
  const int32_t budget = group.tokens_left - held_back;
  std::vector<Sequence*> planned;
  int32_t pages_owed = 0;
  for (Sequence* seq : by_turn) {
    if (static_cast<int32_t>(planned.size()) == budget) break;
    if (seq->state != SequenceState::kRunning || !ReserveToken(group, *seq, pages_owed)) continue;
    ++seq->tokens_in_flight;
    AddRow(group, *seq, {.samples = true});
    planned.push_back(seq);
  }
  if (planned.empty()) return;
  const int32_t each = budget / static_cast<int32_t>(planned.size()) - 1;
  const int32_t drafts = std::min(each, drafts_);
  for (size_t i = 0; drafts > 0 && i < planned.size(); ++i) {
    AddDrafts(group, drafts, *planned[i], group.part.rows[i]);
  }
}

// Gives a decode that has its token up to `drafts` drafts too: none of them costs another request
// its pages.
void Scheduler::AddDrafts(Group& group, int32_t drafts, Sequence& seq, StepRow& row) const {
  const int32_t last = seq.final_length - 1;  // the token there is sampled, never computed
  for (drafts = std::min(drafts, last - seq.planned_least()); drafts > 0; --drafts) {
    const int32_t needed =
        PagesOf(seq, seq.planned_most() + drafts) - static_cast<int32_t>(seq.pages.size());
    if (needed <= 0 || group.pool.Allocate(needed, seq.pages)) break;
  }
  row.drafts = drafts;
  seq.tokens_in_flight += drafts;
  group.tokens_left -= drafts;
  HandOverPages(seq, row);
}

void Scheduler::PlanPrefills(Group& group) {
  for (Sequence* seq : group.running) {
    if (seq->prefilling()) PlanChunk(group, *seq);
  }
}

void Scheduler::PlanChunk(Group& group, Sequence& seq) {
  const int32_t tokens = PrefillTokens(seq, seq.prefilled, seq.prefill_end);
  if (tokens > group.tokens_left) {
    prefill_left_out_ |= !group.prefills;
    return;
  }
  AddPrefill(group, seq, tokens);
  group.prefills = true;
}

// Tokens of its next row, from `begin` on, if it is to be prefilled to `end`: up to the next
// multiple of prefill_chunk, whatever the budget, and never across the prompt's end, so that all of
// them are of one form.
int32_t Scheduler::PrefillTokens(const Sequence& seq, int32_t begin, int32_t end) const {
  const int32_t border = begin + options_.prefill_chunk - begin % options_.prefill_chunk;
  return std::min(border, begin < seq.prompt_size() ? seq.prompt_size() : end) - begin;
}

// Sees to it that the token which `seq` decodes next has a page wherever it turns out to stand.
// False if it must sit this step out: it waits for pages that steps in flight still hold
// (`pages_owed` counts those promised in this plan), or it was itself the one to preempt.
bool Scheduler::ReserveToken(Group& group, Sequence& seq, int32_t& pages_owed) {
  const int32_t needed =
      PagesOf(seq, seq.planned_most() + 1) - static_cast<int32_t>(seq.pages.size());
  while (needed > 0 && !group.pool.Allocate(needed, seq.pages)) {
    if (PagesSoonFree(group) >= pages_owed + needed) {
      pages_owed += needed;
      return false;
    }
    const auto victim = std::find_if(group.running.rbegin(), group.running.rend(),
                                     [](const Sequence* s) { return !s->fully_planned(); });
    const bool is_self = *victim == &seq;  // there is one: `seq` itself at the latest
    Preempt(**victim);
    if (is_self) return false;
  }
  return true;
}

// Pages that come back without preempting anyone, once the steps in flight have completed: those
// that nobody else holds.
int32_t Scheduler::PagesSoonFree(const Group& group) {
  int64_t pages = 0;
  const auto add = [&](const Sequence& seq) {
    pages += std::ranges::count_if(
        seq.pages, [&](const PageRef& page) { return group.pool.holders(page.id()) == 1; });
  };
  for (const Sequence* seq : group.leaving) add(*seq);
  for (const Sequence* seq : group.running) {
    if (seq->fully_planned()) add(*seq);
  }
  return static_cast<int32_t>(pages);
}

AttentionForm Scheduler::FormOfRow(const Sequence& seq, int32_t begin, int32_t tokens) const {
  if (!options_.reuse_decoded) {
    return FormOfToken(begin, seq.prompt_size(), options_.prefill_chunk, options_.absorbed_limit);
  }
  return tokens > options_.absorbed_limit ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
}

void Scheduler::AddPrefill(Group& group, Sequence& seq, int32_t tokens) {
  const int32_t begin = seq.prefilled, end = begin + tokens, prompt_end = seq.prompt_size();
  StepRow row{
      .form = FormOfRow(seq, begin, tokens), .begin = begin, .samples = end == seq.prefill_end};
  for (int32_t at = begin; at < end; ++at) row.tokens.push_back(seq.token(at));
  const int32_t prompt_planned = std::min(end, prompt_end);
  if (prompt_planned > seq.prompt_planned) {  // else it was preempted, and has reported already
    row.prompt_logprobs = seq.params->prompt_logprobs >= 0 && begin < prompt_end - 1;
    prompt_tokens_ += prompt_planned - seq.prompt_planned;
    seq.prompt_planned = prompt_planned;
  }
  seq.prefilled = end;
  if (row.samples) ++seq.tokens_in_flight;
  AddRow(group, seq, std::move(row));
}

void Scheduler::AddRow(Group& group, Sequence& seq, StepRow row) const {
  row.slot = seq.slot;
  row.request = seq.id;
  row.masked = row.samples && seq.params->masked;
  row.first_new_page = seq.pages_planned;
  CheckWritable(group, seq, row);
  HandOverPages(seq, row);
  ++seq.rows_in_flight;
  seq.samples_in_flight += row.samples;
  if (row.samples) seq.sampled_in = next_step_;
  group.tokens_left -= row.num_tokens();
  group.logprobs |= row.samples && seq.params->sampling.logprobs >= 0;
  group.part.rows.push_back(std::move(row));
}

void Scheduler::HandOverPages(Sequence& seq, StepRow& row) {
  for (; seq.pages_planned < static_cast<int32_t>(seq.pages.size()); ++seq.pages_planned) {
    row.new_pages.push_back(seq.pages[static_cast<size_t>(seq.pages_planned)].id());
  }
}

// The step, of which every group has the same number and shape.
StepPlans Scheduler::TakeParts() {
  StepPlans plans;
  StepShape shape{.drafts = drafts_};
  for (Group& group : groups_) {
    Widen(shape, group.part, group.logprobs);
    plans.groups.push_back(std::exchange(group.part, {}));
    group.logprobs = group.prefills = false;
  }
  for (StepPlan& part : plans.groups) {
    part.step = next_step_;
    part.shape = shape;
    std::stable_sort(part.rows.begin(), part.rows.end(), [](const StepRow& a, const StepRow& b) {
      if (PlaceOf(a) != PlaceOf(b)) return PlaceOf(a) < PlaceOf(b);
      return !a.is_decode() && a.num_tokens() < b.num_tokens();
    });
  }
  return plans;
}

}  // namespace fathom
