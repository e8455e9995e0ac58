#include "simulation/fake_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "simulation/plan_text.h"

namespace fathom::simulation {
namespace {

void FormsOfRowLength(StepPlan& plan, int64_t absorbed_limit) {
  for (StepRow& row : plan.rows) {
    const bool expanded = row.num_tokens() > absorbed_limit;
    row.form = expanded ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
    plan.shape.eager |= expanded;
  }
  std::stable_sort(plan.rows.begin(), plan.rows.end(),
                   [](const StepRow& a, const StepRow& b) { return PlaceOf(a) < PlaceOf(b); });
}

// The first two rows of different groups of which both do, or do not, have new pages; null, null
// if there are none.
std::pair<StepRow*, StepRow*> RowsOfTwoGroups(StepPlans& plans, bool with_pages) {
  std::pair<StepRow*, StepRow*> found;
  for (StepPlan& part : plans.groups) {
    const auto row = std::find_if(part.rows.begin(), part.rows.end(), [&](const StepRow& r) {
      return r.is_decode() && r.new_pages.empty() != with_pages;
    });
    if (row == part.rows.end()) continue;
    (found.first == nullptr ? found.first : found.second) = &*row;
    if (found.second != nullptr) return found;
  }
  return {};
}

}  // namespace

uint64_t HashBytes(std::string_view bytes, uint64_t hash) {
  for (char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

FakeDevice::FakeDevice(FakeDeviceOptions options, const PretendModel* model, VirtualClock* clock)
    : options_(std::move(options)), clock_(clock), rng_(options_.seed, /*stream=*/1) {
  for (int32_t group = 0; group < options_.scheduler.groups; ++group) {
    groups_.emplace_back(FakeMemory{.options = options_.scheduler,
                                    .model = model,
                                    .fault = options_.fault,
                                    .complain = options_.complain,
                                    .cells = {}},
                         &requests_);
  }
}

void FakeDevice::Submit(StepPlans plans) {
  Spoil(plans);
  CheckStep(plans);
  pushes_ = plans.has_rows() ? options_.scheduler.stages - 1 : std::max(pushes_ - 1, 0);
  latest_ = plans.step();
  const bool has_rows = plans.has_rows();
  if (has_rows) steps_.push_back(latest_);
  plans.groups.resize(groups_.size());  // it has complained of the one that is left out
  for (size_t g = 0; g < plans.groups.size(); ++g) {
    const StepPlan& plan = plans.groups[g];
    const std::string bytes = Serialize(plan);
    hash_ = HashBytes(fmt::format("{} {}", clock_->NowNs(), bytes), hash_);
    Result<StepPlan> parsed = ParseStepPlan(bytes);
    CHECK(parsed.ok() && *parsed == plan, "step {} does not survive its bytes", plan.step);
    if (options_.trace) options_.trace(ToString(*parsed));
    if (has_rows) groups_[g].Take(*std::move(parsed));
    // What a group does not run now, it runs when it is waited for.
    for (uint32_t n = rng_.Below(4); n > 0; --n) groups_[g].RunSomeRow(rng_);
  }
}

StepResult FakeDevice::Wait() {
  CHECK(!steps_.empty(), "nothing is in flight");
  if (latest_ < steps_.front() + static_cast<uint64_t>(options_.scheduler.stages) - 1) {
    options_.complain(
        fmt::format("step {}: nothing moves it on to the last stage", steps_.front()));
  }
  StepResult result{.step = steps_.front(), .rows = {}};
  int64_t latest_ns = 0;
  const auto finished = [](const FakeGroup& group) { return group.finished_oldest(); };
  const bool some_finished = std::any_of(groups_.begin(), groups_.end(), finished);
  for (FakeGroup& group : groups_) {
    late_answers_ += some_finished && !group.finished_oldest();
    latest_ns = std::max<int64_t>(latest_ns, 1'000'000 + rng_.Below(10'000'000));
    while (!group.finished_oldest()) group.RunSomeRow(rng_);
    std::vector<RowResult> rows = group.TakeOldest();
    std::move(rows.begin(), rows.end(), std::back_inserter(result.rows));
  }
  clock_->AdvanceNs(latest_ns);
  steps_.pop_front();
  if (options_.fault == Fault::kTokensTraded) TradeTokens(result);
  if (options_.trace) options_.trace(ToString(result));
  return result;
}

void FakeDevice::Spoil(StepPlans& plans) const {
  const auto [one, other] =
      RowsOfTwoGroups(plans, /*with_pages=*/options_.fault == Fault::kPageOfAnotherGroup);
  switch (options_.fault) {
    case Fault::kFormOfRowLength:
      for (StepPlan& part : plans.groups) {
        FormsOfRowLength(part, options_.scheduler.absorbed_limit);
      }
      for (StepPlan& part : plans.groups) part.shape = ShapeOf(plans);
      break;
    case Fault::kRowInAnotherGroup:
      if (one != nullptr) std::swap(*one, *other);
      break;
    case Fault::kPageOfAnotherGroup:
      if (one != nullptr) std::swap(one->new_pages, other->new_pages);
      break;
    case Fault::kGroupLeftOut:
      if (plans.groups.size() > 1 && plans.groups.back().rows.empty()) plans.groups.pop_back();
      break;
    case Fault::kShapesDiffer:
      if (plans.groups.size() > 1) ++plans.groups.back().shape.rows;
      break;
    case Fault::kShapeOfOneGroup:
      for (StepPlan& part : plans.groups) part.shape = ShapeOf({.groups = {part}});
      break;
    default: break;
  }
}

void FakeDevice::CheckStep(const StepPlans& plans) const {
  const auto complain = [&](const char* what) {
    options_.complain(fmt::format("step {}: {}", plans.step(), what));
  };
  if (plans.groups.size() != groups_.size()) complain("a group is left out");
  if (!plans.has_rows() && pushes_ == 0) complain("a step without rows that moves nothing on");
  if (plans.has_rows() && steps_.size() >= static_cast<size_t>(options_.scheduler.depth)) {
    complain("more steps than the depth");
  }
  const StepShape shape = ShapeOf(plans);
  for (const StepPlan& part : plans.groups) {
    if (part.step != plans.step()) complain("groups of different steps");
    if (part.shape != shape) complain("a shape that is not that of all groups");
  }
}

// In other words than Widen() and the scheduler have for it.
StepShape FakeDevice::ShapeOf(const StepPlans& plans) const {
  StepShape shape;
  if (!plans.groups.empty()) shape.drafts = plans.groups.front().shape.drafts;  // as was chosen
  for (const StepPlan& part : plans.groups) {
    int32_t rows = 0, tokens = 0, logit_vectors = 0;
    bool logprobs = false;
    for (const StepRow& row : part.rows) {
      const int32_t n = row.is_decode() ? row.drafts + 1 : static_cast<int32_t>(row.tokens.size());
      ++rows;
      tokens += n;
      logit_vectors += row.is_decode() ? n : row.samples ? 1 : 0;
      const auto asked = requests_.asked.find(row.request);
      const bool wants = asked != requests_.asked.end() && asked->second.sampling.logprobs >= 0;
      logprobs = logprobs || (row.samples && wants);
      shape.eager = shape.eager || row.prompt_logprobs || row.form == AttentionForm::kExpanded;
      shape.known = shape.known || !row.tokens.empty();
    }
    shape.rows = std::max(shape.rows, rows);
    shape.tokens = std::max(shape.tokens, tokens);
    shape.logit_vectors = std::max(shape.logit_vectors, logit_vectors);
    if (logprobs) shape.logprob_vectors = std::max(shape.logprob_vectors, logit_vectors);
  }
  return shape;
}

// Between two rows that brought as many: a scheduler cannot tell.
void FakeDevice::TradeTokens(StepResult& result) {
  for (size_t r = 1; r < result.rows.size(); ++r) {
    auto &before = result.rows[r - 1].tokens, &after = result.rows[r].tokens;
    if (before.size() == after.size()) std::swap(before, after);
  }
}

}  // namespace fathom::simulation
