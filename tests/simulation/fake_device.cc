#include "simulation/fake_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace fathom::simulation {

uint64_t HashBytes(std::string_view bytes, uint64_t hash) {
  for (char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

FakeDevice::FakeDevice(const SchedulerOptions& options, const PretendModel* model,
                       VirtualClock* clock, uint64_t seed, Fault fault, Complain complain)
    : options_(options),
      model_(model),
      clock_(clock),
      fault_(fault),
      complain_(std::move(complain)),
      rng_(seed, /*stream=*/1),
      cells_(static_cast<size_t>(options.num_pages) * kPageTokens),
      slots_(options.max_num_seqs) {}

void FakeDevice::Submit(ExecutorStep step) {
  const std::string bytes = Serialize(step.plan);
  hash_ = HashBytes(fmt::format("{} {}", clock_->NowNs(), bytes), hash_);
  Result<StepPlan> parsed = ParseStepPlan(bytes);  // as a rank gets it
  CHECK(parsed.ok() && *parsed == step.plan, "step {} does not survive its bytes", step.plan.step);
  CheckPlan(step);
  Step next;
  next.result.step = step.plan.step;
  next.rows_left = step.plan.rows.size();
  next.done.resize(next.rows_left);
  next.result.rows.resize(next.rows_left);
  next.work = std::move(step);
  steps_.push_back(std::move(next));
  for (uint32_t n = rng_.Below(4); n > 0; --n) RunSomeRow();
}

StepResult FakeDevice::Wait() {
  CHECK(!steps_.empty(), "nothing is in flight");
  clock_->AdvanceNs(1'000'000 + rng_.Below(10'000'000));
  while (steps_.front().rows_left > 0) RunSomeRow();
  StepResult result = std::move(steps_.front().result);
  steps_.pop_front();
  if (fault_ == Fault::kTokensTraded) TradeTokens(result);
  return result;
}

void FakeDevice::CheckPlan(const ExecutorStep& step) {
  const auto& rows = step.plan.rows;
  if (rows.empty()) complain_("an empty step");
  if (steps_.size() >= static_cast<size_t>(options_.depth)) complain_("more steps than the depth");
  if (step.plan.num_tokens() > options_.max_num_batched_tokens) complain_("budget exceeded");
  const bool ordered = std::is_sorted(rows.begin(), rows.end(), [](auto& a, auto& b) {
    if (a.is_decode() != b.is_decode()) return a.is_decode();
    return a.num_tokens < b.num_tokens;
  });
  if (!ordered) complain_("rows out of order");
  std::vector<bool> seen(slots_.size());
  for (const StepRow& row : rows) {
    if (seen.at(Raw(row.slot))) complain_(fmt::format("slot {} twice in a step", Raw(row.slot)));
    seen[Raw(row.slot)] = true;
    CheckRow(row, step);
  }
  for (const SlotOpening& opening : step.openings) {
    if (!seen.at(Raw(opening.slot))) complain_("a slot opens without a row");
    for (const Step& earlier : steps_) {
      for (const StepRow& row : earlier.work.plan.rows) {
        if (row.slot == opening.slot) complain_("a slot opens that a step in flight uses");
      }
    }
  }
}

void FakeDevice::CheckRow(const StepRow& row, const ExecutorStep& step) {
  const auto who = fmt::format("request {} position {}", Raw(row.request), row.position);
  if (ended_.contains(row.request)) complain_(who + ": a row after the end");
  for (PageId page : row.new_pages) {
    if (Raw(page) < 0 || Raw(page) >= options_.num_pages) complain_(who + ": no such page");
  }
  if (row.is_decode()) {
    if (row.num_tokens != 1 || !row.samples) complain_(who + ": not a decode");
    return;
  }
  // A prefill row's borders are the chunk's, or the end of what is known.
  const int32_t end = row.position + row.num_tokens;
  if (row.position % options_.prefill_chunk != 0) complain_(who + ": begins inside a chunk");
  if (row.num_tokens > options_.prefill_chunk) complain_(who + ": crosses a border");
  if (!row.samples && end % options_.prefill_chunk != 0) complain_(who + ": ends inside a chunk");
  const bool opens = std::any_of(step.openings.begin(), step.openings.end(),
                                 [&](const SlotOpening& o) { return o.slot == row.slot; });
  if (opens != (row.position == 0)) complain_(who + ": a slot opens exactly at position 0");
}

bool FakeDevice::SlotIsBusy(size_t before_step, SlotId slot) const {
  for (size_t s = 0; s < before_step; ++s) {
    const auto& rows = steps_[s].work.plan.rows;
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
      if (!steps_[s].done[r] && !SlotIsBusy(s, steps_[s].work.plan.rows[r].slot)) {
        ready.emplace_back(s, r);
      }
    }
  }
  if (ready.empty()) return;
  const auto [s, r] = ready[rng_.Below(static_cast<uint32_t>(ready.size()))];
  RunRow(steps_[s], r);
}

void FakeDevice::RunRow(Step& step, size_t r) {
  const StepRow& row = step.work.plan.rows[r];
  Slot& slot = slots_[Raw(row.slot)];
  for (SlotOpening& opening : step.work.openings) {
    if (opening.slot != row.slot) continue;
    slot = Slot{};
    slot.life = ++lives_;
    slot.generated = static_cast<int32_t>(opening.generated.size());
    slot.opening = std::move(opening);
  }
  if (row.first_new_page != static_cast<int32_t>(slot.page_table.size())) {
    complain_(fmt::format("request {}: page table entry {} of {}", Raw(row.request),
                          row.first_new_page, slot.page_table.size()));
    slot.page_table.resize(row.first_new_page);
  }
  for (PageId page : row.new_pages) {
    const bool ignore = fault_ == Fault::kPageIgnored && row.is_decode();
    slot.page_table.push_back(ignore ? PageId{0} : page);
  }
  CheckContext(slot, row);
  WriteTokens(slot, row);
  step.result.rows[r] = ComputeRow(slot, row);
  step.done[r] = true;
  --step.rows_left;
}

FakeDevice::Cell& FakeDevice::CellOf(const Slot& slot, int32_t position) {
  const PageId page = slot.page_table.at(position / kPageTokens);
  return cells_.at(static_cast<size_t>(Raw(page)) * kPageTokens + position % kPageTokens);
}

// Every position before the row's holds what this life of this request wrote there.
void FakeDevice::CheckContext(const Slot& slot, const StepRow& row) {
  const auto written = static_cast<int32_t>(slot.written.size());
  if (row.position != written) {
    complain_(fmt::format("request {}: position {} after {} tokens", Raw(row.request), row.position,
                          written));
  }
  for (int32_t at = 0; at < std::min(row.position, written); ++at) {
    if (CellOf(slot, at) != Cell{slot.life, at, slot.written[at]}) {
      complain_(fmt::format("request {}: position {} was overwritten", Raw(row.request), at));
      return;
    }
  }
}

void FakeDevice::WriteTokens(Slot& slot, const StepRow& row) {
  const auto prompt = static_cast<int32_t>(slot.opening.prompt.size());
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t at = row.position + i;
    const TokenId token = row.is_decode() ? slot.last : row.tokens[i];
    if (!row.is_decode() &&
        token != (at < prompt ? slot.opening.prompt[at] : slot.opening.generated.at(at - prompt))) {
      complain_(fmt::format("request {}: another token at {}", Raw(row.request), at));
    }
    CellOf(slot, at) = {slot.life, at, token};
    slot.written.push_back(token);
  }
}

RowResult FakeDevice::ComputeRow(Slot& slot, const StepRow& row) {
  RowResult result;
  const int32_t end = row.position + row.num_tokens;
  if (model_->FirstNaN(row.request) < end) {
    result.status = Internal("NaN logits");
    return result;
  }
  const auto prompt = static_cast<int32_t>(slot.opening.prompt.size());
  if (row.prompt_logprobs) {
    if (slot.opening.prompt_logprobs < 0) complain_("log-probabilities that nobody asked for");
    for (int32_t at = row.position + 1; at < std::min(end + 1, prompt); ++at) {
      result.prompt_logprobs.push_back(
          {.logprob = model_->PromptLogprob(row.request, at, slot.opening.prompt[at]), .top = {}});
    }
  }
  if (row.samples) {
    const bool may_stop = slot.generated >= slot.opening.min_tokens;
    slot.last = model_->Next(row.request, end, slot.written.back(),
                             may_stop ? std::vector<TokenId>{} : slot.opening.stop_tokens);
    ++slot.generated;
    result.token.id = slot.last;
  }
  return result;
}

void FakeDevice::TradeTokens(StepResult& result) {
  if (result.rows.size() >= 2) std::swap(result.rows[0].token, result.rows[1].token);
}

}  // namespace fathom::simulation
