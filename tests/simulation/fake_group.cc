#include "simulation/fake_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fathom::simulation {

std::pair<int, int32_t> PlaceOf(const StepRow& row) {
  if (row.is_decode()) return {2, 0};
  return {row.form == AttentionForm::kExpanded ? 0 : 1, row.num_tokens()};
}

FakeGroup::FakeGroup(FakeMemory memory, KnownRequests* requests)
    : memory_(std::move(memory)),
      requests_(requests),
      slots_(static_cast<size_t>(memory_.options.max_num_seqs)),
      holders_(slots_.size()) {
  memory_.cells.resize(static_cast<size_t>(memory_.options.num_pages) * kPageTokens);
  memory_.draft_cells.resize(memory_.cells.size());
}

void FakeGroup::Take(StepPlan plan) {
  CheckPlan(plan);
  Step& next = steps_.emplace_back();
  next.rows_left = plan.rows.size();
  next.done.resize(next.rows_left);
  next.results.resize(next.rows_left);
  for (const StepRow& row : plan.rows) ++requests_->rows_in_flight[row.request];
  next.plan = std::move(plan);
}

std::vector<RowResult> FakeGroup::TakeOldest() {
  for (const StepRow& row : steps_.front().plan.rows) --requests_->rows_in_flight[row.request];
  std::vector<RowResult> results = std::move(steps_.front().results);
  steps_.pop_front();
  return results;
}

void FakeGroup::CheckPlan(const StepPlan& plan) {
  const SchedulerOptions& s = memory_.options;
  if (steps_.size() >= static_cast<size_t>(s.depth)) Complain("more steps than the depth");
  if (plan.num_tokens() > s.max_num_batched_tokens) Complain("budget exceeded");
  const bool ordered =
      std::is_sorted(plan.rows.begin(), plan.rows.end(),
                     [](const StepRow& a, const StepRow& b) { return PlaceOf(a) < PlaceOf(b); });
  if (!ordered) Complain("rows out of order");
  for (const SlotOpening& opening : plan.openings) {
    CheckOpening(opening);
    const bool has_row = std::any_of(plan.rows.begin(), plan.rows.end(), [&](const StepRow& row) {
      return row.slot == opening.slot && row.begin == opening.length;
    });
    if (!has_row) Complain("a slot opens without a row that begins at its length");
  }
  std::vector<bool> seen(slots_.size());
  for (const StepRow& row : plan.rows) {
    if (seen.at(Raw(row.slot))) Complain(fmt::format("slot {} twice in a step", Raw(row.slot)));
    seen[Raw(row.slot)] = true;
    CheckRow(plan.step, row);
  }
}

void FakeGroup::CheckOpening(const SlotOpening& opening) {
  const auto who = fmt::format("request {}", Raw(opening.request));
  if (IsInFlight([&](const StepRow& row) { return row.slot == opening.slot; })) {
    Complain(who + ": a slot opens that a step in flight uses");
  }
  const auto asked = requests_->asked.find(opening.request);
  if (asked == requests_->asked.end() || *opening.params != asked->second) {
    Complain(who + ": a slot opens for something else than was asked");
  }
  if (requests_->rows_in_flight[opening.request] > 0) {
    Complain(who + ": a slot opens, and rows of its last one are in flight");
  }
  const void* const before = std::exchange(requests_->group[opening.request], this);
  requests_->moved += before != nullptr && before != this;
  const auto prompt = static_cast<int32_t>(opening.params->prompt.size());
  const int32_t length = std::min(prompt + opening.params->max_tokens,
                                  std::max(memory_.options.max_model_len, prompt + 1));
  if (opening.final_length != length) Complain(who + ": another final length");
  holders_.at(Raw(opening.slot)) = {
      .request = opening.request,
      .params = opening.params,
      .known = prompt + static_cast<int32_t>(opening.generated.size()),
      .next_begin = opening.length,
      .final_length = opening.final_length};
}

void FakeGroup::CheckRow(uint64_t step, const StepRow& row) {
  const auto who = fmt::format("request {}", Raw(row.request));
  Holder& holder = holders_.at(Raw(row.slot));
  if (requests_->ended.contains(row.request)) Complain(who + ": a row after the end");
  if (holder.params == nullptr || holder.request != row.request) {
    Complain(who + ": a row in another's slot");
    return;
  }
  for (PageId page : row.new_pages) {
    if (Raw(page) < 0 || Raw(page) >= memory_.options.num_pages) {
      Complain(who + ": no such page");
    }
  }
  const uint64_t sampled_in = holder.sampled_in;
  if (row.samples) holder.sampled_in = step;
  holder.samples += row.samples;
  if (!row.is_decode()) return CheckKnownRow(row, holder);
  if (step < sampled_in + static_cast<uint64_t>(memory_.options.stages)) {
    Complain(who + ": a decode, and the first stage cannot know yet of what");
  }
  const int32_t least = holder.known + holder.samples - 2;  // where it begins
  if (least + row.num_tokens() > holder.final_length - 1) Complain(who + ": a row past its end");
  if (holder.next_begin != holder.known) Complain(who + ": a decode before its prefill");
  if (row.form != AttentionForm::kAbsorbed) Complain(who + ": an expanded decode");
  if (row.drafts > memory_.options.max_drafts) Complain(who + ": too many drafts");
}

// It ends at the border of its chunk, where the prompt ends, or where what is known does.
void FakeGroup::CheckKnownRow(const StepRow& row, Holder& holder) {
  const auto who = fmt::format("request {} from {}", Raw(row.request), row.begin);
  const auto prompt = static_cast<int32_t>(holder.params->prompt.size());
  const int32_t chunk = memory_.options.prefill_chunk;
  int32_t end = std::min((row.begin / chunk + 1) * chunk, holder.known);
  if (row.begin < prompt) end = std::min(end, prompt);
  if (row.begin != holder.next_begin) Complain(who + ": another row was due");
  if (row.begin + row.num_tokens() != end) Complain(who + ": it ends elsewhere than its part");
  if (row.samples != (end == holder.known)) Complain(who + ": the last row samples, no other");
  holder.next_begin = end;
}

bool FakeGroup::IsInFlight(const std::function<bool(const StepRow&)>& is) const {
  return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
    return std::any_of(step.plan.rows.begin(), step.plan.rows.end(), is);
  });
}

bool FakeGroup::SlotIsBusy(size_t before_step, SlotId slot) const {
  for (size_t s = 0; s < before_step; ++s) {
    const auto& rows = steps_[s].plan.rows;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].slot == slot && !steps_[s].done[r]) return true;
    }
  }
  return false;
}

void FakeGroup::RunSomeRow(Rng& rng) {
  std::vector<std::pair<size_t, size_t>> ready;
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (size_t r = 0; r < steps_[s].done.size(); ++r) {
      if (!steps_[s].done[r] && !SlotIsBusy(s, steps_[s].plan.rows[r].slot)) {
        ready.emplace_back(s, r);
      }
    }
  }
  if (ready.empty()) return;
  const auto [s, r] = ready[rng.Below(static_cast<uint32_t>(ready.size()))];
  RunRow(steps_[s], r);
}

void FakeGroup::RunRow(Step& step, size_t r) {
  const StepRow& row = step.plan.rows[r];
  FakeSlot& slot = slots_[Raw(row.slot)];
  for (const SlotOpening& opening : step.plan.openings) {
    if (opening.slot == row.slot) slot.Open(opening, memory_);
  }
  // In another's slot nothing of a row means anything: it has been complained of.
  if (slot.request() == row.request) step.results[r] = slot.Run(row, memory_);
  step.done[r] = true;
  --step.rows_left;
}

}  // namespace fathom::simulation
