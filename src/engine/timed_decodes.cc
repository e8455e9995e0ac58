#include "engine/timed_decodes.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/ids.h"
#include "base/rng.h"
#include "speculation/speculation.h"

namespace fathom {
namespace {

// Each lies in one page, with all that its drafts may add.
constexpr int32_t kContext = kPageTokens / 2;
static_assert(kContext + 1 + 2 * Speculation::kMostTokens <= kPageTokens);

// From all over the vocabulary, so that experts are drawn as by any text.
std::vector<TokenId> RandomTokens(int64_t count, int64_t vocab, Rng& rng) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(TokenId{static_cast<int32_t>(rng.Below(static_cast<uint32_t>(vocab)))});
  }
  return tokens;
}

class TimedDecodes {
 public:
  TimedDecodes(StepRunner& runner, Device& device, int32_t decodes)
      : runner_(runner), device_(device) {
    const int64_t vocab = runner.slots().counts.dim(1);
    Rng rng(1);
    tokens_ = RandomTokens(decodes, vocab, rng);
    drafts_ = RandomTokens(decodes * runner.slots().drafts.dim(1), vocab, rng);
    const auto params =
        std::make_shared<const RequestParams>(RequestParams{.prompt = {tokens_.front()}});
    StepPlan opens;
    for (int32_t i = 0; i < decodes; ++i) {
      opens.openings.push_back({.slot = SlotId{i}, .params = params, .final_length = kPageTokens});
      opens.rows.push_back({.slot = SlotId{i}, .new_pages = {PageId{i}}, .samples = true});
    }
    if (device_.status().ok()) runner_.Begin(opens);
  }

  // The next step of the first of them, as if each had so many drafts.
  StepPlan Next(int32_t decodes, int32_t drafts) {
    const SlotState& slots = runner_.slots();
    const auto each = static_cast<size_t>(decodes);
    Upload(slots.length.Slice(0, 0, decodes), std::vector(each, kContext));
    Upload(slots.last_token.Slice(0, 0, decodes), tokens_);
    Upload(slots.num_drafts.Slice(0, 0, decodes), std::vector(each, drafts));
    Upload(slots.drafts.Slice(0, 0, decodes), drafts_);
    StepPlan plan{.shape = {.drafts = drafts}};
    for (int32_t i = 0; i < decodes; ++i) {
      plan.rows.push_back({.slot = SlotId{i}, .drafts = drafts, .samples = true});
    }
    Widen(plan.shape, plan, /*logprobs=*/false);
    return plan;
  }

 private:
  template <class T>
  void Upload(const TensorView& to, const std::vector<T>& from) {
    if (!device_.status().ok()) return;  // but ranks still meet
    device_.Upload(to, std::as_bytes(std::span(from).first(static_cast<size_t>(to.elements()))));
  }

  StepRunner& runner_;
  Device& device_;
  std::vector<TokenId> tokens_, drafts_;  // of all slots
};

// Between the ends of steps that are enqueued while the one before runs, as when the engine plans
// ahead.
std::optional<double> TimeSteps(Device& device, const std::function<bool()>& enqueue) {
  constexpr int kSteps = 2;  // after the first
  if (!enqueue()) return std::nullopt;
  uint64_t before = device.Mark();
  double began = 0;
  for (int i = 0; i < kSteps; ++i) {
    enqueue();
    device.WaitFor(before);
    if (i == 0) began = SecondsNow();
    before = device.Mark();
  }
  device.WaitFor(before);
  return (SecondsNow() - began) / kSteps;
}

}  // namespace

int32_t MostTimedDecodes(const StepRunner& runner, int64_t num_pages) {
  if (runner.max_model_len() < kPageTokens) return 0;
  return static_cast<int32_t>(std::min(runner.slots().length.dim(0), num_pages));
}

std::vector<StepTime> TimeDecodes(StepRunner& runner, Device& device, int32_t decodes,
                                  const std::function<bool(const StepPlan&)>& enqueue,
                                  const std::function<void()>& meet) {
  TimedDecodes timed(runner, device, decodes);
  std::vector<StepTime> times;
  for (const int32_t rows : DraftDepth::Sizes(decodes)) {
    for (int32_t drafts = 0; drafts <= runner.slots().drafts.dim(1); ++drafts) {
      meet();
      const std::optional<double> seconds =
          TimeSteps(device, [&] { return enqueue(timed.Next(rows, drafts)); });
      if (seconds) times.push_back({rows, drafts, *seconds});
    }
  }
  return times;
}

}  // namespace fathom
