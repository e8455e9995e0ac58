#include "simulation/fake_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "simulation/plan_text.h"

namespace fathom::simulation {
namespace {

// Where a row stands in its step: expanded ones by length, absorbed ones by length, decodes.
std::pair<int, int32_t> PlaceOf(const StepRow& row) {
  if (row.is_decode()) return {2, 0};
  return {row.form == AttentionForm::kExpanded ? 0 : 1, row.num_tokens()};
}

}  // namespace

uint64_t HashBytes(std::string_view bytes, uint64_t hash) {
  for (char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

FakeDevice::FakeDevice(FakeDeviceOptions options, const PretendModel* model, VirtualClock* clock)
    : options_(std::move(options)),
      clock_(clock),
      rng_(options_.seed, /*stream=*/1),
      memory_{.options = options_.scheduler,
              .model = model,
              .fault = options_.fault,
              .complain = options_.complain,
              .cells = std::vector<Cell>(static_cast<size_t>(options_.scheduler.num_pages) *
                                         kPageTokens)},
      slots_(static_cast<size_t>(options_.scheduler.max_num_seqs)),
      holders_(slots_.size()) {}

void FakeDevice::Submit(StepPlan plan) {
  Spoil(plan);
  const std::string bytes = Serialize(plan);
  hash_ = HashBytes(fmt::format("{} {}", clock_->NowNs(), bytes), hash_);
  Result<StepPlan> parsed = ParseStepPlan(bytes);
  CHECK(parsed.ok() && *parsed == plan, "step {} does not survive its bytes", plan.step);
  if (options_.trace) options_.trace(ToString(*parsed));
  CheckPlan(*parsed);
  Step next;
  next.result.step = parsed->step;
  next.rows_left = parsed->rows.size();
  next.done.resize(next.rows_left);
  next.result.rows.resize(next.rows_left);
  next.plan = std::move(*parsed);
  steps_.push_back(std::move(next));
  for (uint32_t n = rng_.Below(4); n > 0; --n) RunSomeRow();
}

StepResult FakeDevice::Wait() {
  CHECK(!steps_.empty(), "nothing is in flight");
  clock_->AdvanceNs(1'000'000 + rng_.Below(10'000'000));
  while (steps_.front().rows_left > 0) RunSomeRow();
  StepResult result = std::move(steps_.front().result);
  steps_.pop_front();
  if (options_.fault == Fault::kTokensTraded) TradeTokens(result);
  if (options_.trace) options_.trace(ToString(result));
  return result;
}

// A scheduler's fault that shows in its plans alone.
void FakeDevice::Spoil(StepPlan& plan) const {
  if (options_.fault != Fault::kFormOfRowLength) return;
  for (StepRow& row : plan.rows) {
    const bool expanded = row.num_tokens() > options_.scheduler.absorbed_limit;
    row.form = expanded ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
  }
  std::stable_sort(plan.rows.begin(), plan.rows.end(),
                   [](const StepRow& a, const StepRow& b) { return PlaceOf(a) < PlaceOf(b); });
}

void FakeDevice::CheckPlan(const StepPlan& plan) {
  const SchedulerOptions& s = options_.scheduler;
  if (plan.rows.empty()) Complain("an empty step");
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
    CheckRow(row);
  }
}

void FakeDevice::CheckOpening(const SlotOpening& opening) {
  const auto who = fmt::format("request {}", Raw(opening.request));
  if (IsInFlight([&](const StepRow& row) { return row.slot == opening.slot; })) {
    Complain(who + ": a slot opens that a step in flight uses");
  }
  const auto asked = asked_.find(opening.request);
  if (asked == asked_.end() || *opening.params != asked->second) {
    Complain(who + ": a slot opens for something else than was asked");
  }
  const auto prompt = static_cast<int32_t>(opening.params->prompt.size());
  const int32_t length = std::min(prompt + opening.params->max_tokens,
                                  std::max(options_.scheduler.max_model_len, prompt + 1));
  if (opening.final_length != length) Complain(who + ": another final length");
  holders_.at(Raw(opening.slot)) = {
      .request = opening.request,
      .params = opening.params,
      .known = prompt + static_cast<int32_t>(opening.generated.size()),
      .next_begin = opening.length,
      .final_length = opening.final_length};
}

void FakeDevice::CheckRow(const StepRow& row) {
  const auto who = fmt::format("request {}", Raw(row.request));
  Holder& holder = holders_.at(Raw(row.slot));
  if (ended_.contains(row.request)) Complain(who + ": a row after the end");
  if (holder.params == nullptr || holder.request != row.request) {
    Complain(who + ": a row in another's slot");
    return;
  }
  for (PageId page : row.new_pages) {
    if (Raw(page) < 0 || Raw(page) >= options_.scheduler.num_pages) {
      Complain(who + ": no such page");
    }
  }
  if (holder.params->lockstep &&
      IsInFlight([&](const StepRow& other) { return other.request == row.request; })) {
    Complain(who + ": in lockstep, and two rows are in flight");
  }
  holder.samples += row.samples;
  if (!row.is_decode()) return CheckKnownRow(row, holder);
  const int32_t least = holder.known + holder.samples - 2;  // where it begins
  if (least + row.num_tokens() > holder.final_length - 1) Complain(who + ": a row past its end");
  if (holder.next_begin != holder.known) Complain(who + ": a decode before its prefill");
  if (row.form != AttentionForm::kAbsorbed) Complain(who + ": an expanded decode");
  if (row.drafts > options_.scheduler.max_drafts) Complain(who + ": too many drafts");
}

// It ends at the border of its chunk, where the prompt ends, or where what is known does.
void FakeDevice::CheckKnownRow(const StepRow& row, Holder& holder) {
  const auto who = fmt::format("request {} from {}", Raw(row.request), row.begin);
  const auto prompt = static_cast<int32_t>(holder.params->prompt.size());
  const int32_t chunk = options_.scheduler.prefill_chunk;
  int32_t end = std::min((row.begin / chunk + 1) * chunk, holder.known);
  if (row.begin < prompt) end = std::min(end, prompt);
  if (row.begin != holder.next_begin) Complain(who + ": another row was due");
  if (row.begin + row.num_tokens() != end) Complain(who + ": it ends elsewhere than its part");
  if (row.samples != (end == holder.known)) Complain(who + ": the last row samples, no other");
  holder.next_begin = end;
}

bool FakeDevice::IsInFlight(const std::function<bool(const StepRow&)>& is) const {
  return std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
    return std::any_of(step.plan.rows.begin(), step.plan.rows.end(), is);
  });
}

bool FakeDevice::SlotIsBusy(size_t before_step, SlotId slot) const {
  for (size_t s = 0; s < before_step; ++s) {
    const auto& rows = steps_[s].plan.rows;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].slot == slot && !steps_[s].done[r]) return true;
    }
  }
  return false;
}

// Any row in flight may come next, but for the order of a slot's own rows.
void FakeDevice::RunSomeRow() {
  std::vector<std::pair<size_t, size_t>> ready;
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (size_t r = 0; r < steps_[s].done.size(); ++r) {
      if (!steps_[s].done[r] && !SlotIsBusy(s, steps_[s].plan.rows[r].slot)) {
        ready.emplace_back(s, r);
      }
    }
  }
  if (ready.empty()) return;
  const auto [s, r] = ready[rng_.Below(static_cast<uint32_t>(ready.size()))];
  RunRow(steps_[s], r);
}

void FakeDevice::RunRow(Step& step, size_t r) {
  const StepRow& row = step.plan.rows[r];
  FakeSlot& slot = slots_[Raw(row.slot)];
  for (const SlotOpening& opening : step.plan.openings) {
    if (opening.slot == row.slot) slot.Open(opening, memory_);
  }
  step.result.rows[r] = slot.Run(row, memory_);
  step.done[r] = true;
  --step.rows_left;
}

// Between two rows that brought as many: a scheduler cannot tell.
void FakeDevice::TradeTokens(StepResult& result) {
  for (size_t r = 1; r < result.rows.size(); ++r) {
    auto &before = result.rows[r - 1].tokens, &after = result.rows[r].tokens;
    if (before.size() == after.size()) std::swap(before, after);
  }
}

}  // namespace fathom::simulation
