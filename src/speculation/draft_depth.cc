#include "speculation/draft_depth.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fathom {
namespace {

constexpr size_t kMostSteps = 16;        // that a time is the median of
constexpr size_t kKeptSteps = 4;         // from before a trial
constexpr double kMostReached = 400;     // decodes that a share is of
constexpr double kBetter = 1.01;         // what is no better than this is noise
constexpr double kFewDoubt = 0.25;       // of one step: how far from others, a few do not say
constexpr double kDoubts = 2;            // standard errors beyond which a difference is believed
constexpr double kExpectedDoubt = 0.03;  // of a time that was known before the first step
constexpr double kRemembered = 16;       // decodes before a trial that count beside its own

// Steps between trials, in multiples of one: of a depth that was never timed, and of others.
constexpr int32_t kSoon = 2, kLater = 50;

// Some 50 decodes say something of what stands, and a few steps of their time.
int32_t TrialSteps(int32_t decodes) {
  return 2 + std::clamp(50 / std::max(decodes, 1), 4, 25);
}

// One, two, three, four, then two sizes for each doubling.
size_t SizeOf(int32_t decodes) {
  const auto n = static_cast<uint32_t>(std::max(decodes, 1));
  if (n <= 4) return n - 1;
  const auto octave = static_cast<uint32_t>(std::bit_width(n - 1) - 1);  // 5..8: 2, 9..16: 3
  const bool upper = n > (3u << (octave - 1));
  return 4 + 2 * (octave - 2) + (upper ? 1 : 0);
}

// All but so many, the last.
void Forget(std::vector<double>& times, size_t kept) {
  if (times.size() > kept) times.erase(times.begin(), times.end() - static_cast<int64_t>(kept));
}

double Median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

DraftDepth::DraftDepth(int32_t most) : most_(most) {}

DraftDepth::Batch& DraftDepth::Of(int32_t decodes) {
  const size_t size = SizeOf(decodes);
  while (batches_.size() <= size) {
    batches_.push_back({.depths = std::vector<Depth>(static_cast<size_t>(most_) + 1)});
  }
  return batches_[size];
}

// One step alone does not overrule what was expected.
bool DraftDepth::Depth::timed() const {
  return times.size() >= (expected > 0 ? kKeptSteps : 1);
}

std::vector<int32_t> DraftDepth::Sizes(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t decodes = 1; decodes <= most; ++decodes) {
    if (decodes == most || SizeOf(decodes) < SizeOf(decodes + 1)) sizes.push_back(decodes);
  }
  return sizes;
}

void DraftDepth::Expect(const StepTime& time) {
  if (time.drafts <= most_) {
    Of(time.decodes).depths[static_cast<size_t>(time.drafts)].expected = time.seconds;
  }
}

DraftDepth::Choice DraftDepth::Choose(int32_t decodes) {
  Batch& batch = Of(decodes);
  batch.trial_steps = TrialSteps(decodes);
  const int32_t drafts = batch.trial_left > 0 ? batch.trial : Next(batch);
  batch.trial_left = std::max(batch.trial_left - 1, 0);
  ++batch.since_trial;
  repeated_ = drafts == last_ ? repeated_ + 1 : 0;
  last_ = drafts;
  return {.drafts = drafts, .settled = repeated_ >= kUnsettled};
}

std::optional<bool> DraftDepth::OneMorePays(const Batch& batch, int32_t drafts) {
  const auto &lesser = batch.depths[static_cast<size_t>(drafts)],
             &greater = batch.depths[static_cast<size_t>(drafts) + 1];
  double longer = greater.seconds / lesser.seconds, doubt = std::hypot(lesser.doubt, greater.doubt);
  if (!lesser.timed() || !greater.timed()) {
    if (lesser.expected == 0 || greater.expected == 0) return std::nullopt;
    longer = greater.expected / lesser.expected;
    doubt = kExpectedDoubt;
  }
  double tokens = 1, reached = 1;  // of a row
  for (int32_t i = 1; i <= drafts; ++i) {
    const Depth& depth = batch.depths[static_cast<size_t>(i)];
    reached *= depth.stood / depth.reached;
    tokens += reached;
  }
  const double more = 1 + reached * greater.stood / greater.reached / tokens;
  return more > (kBetter + kDoubts * doubt) * longer;
}

int32_t DraftDepth::Next(Batch& batch) const {
  const auto timed = [&](int32_t drafts) {
    return batch.depths[static_cast<size_t>(drafts)].timed();
  };
  if (batch.best > 0 && !OneMorePays(batch, batch.best - 1).value_or(true)) {
    --batch.best;
  } else if (batch.best < most_ && OneMorePays(batch, batch.best).value_or(false)) {
    ++batch.best;
  }
  if (!timed(batch.best)) return batch.best;
  const int32_t other = Candidate(batch);
  if (other < 0) return batch.best;
  if (batch.since_trial < (timed(other) ? kLater : kSoon) * batch.trial_steps) return batch.best;
  batch.upwards = other > batch.best;
  BeginTrial(batch, other);
  return other;
}

int32_t DraftDepth::Candidate(const Batch& batch) const {
  const int32_t up = batch.best < most_ ? batch.best + 1 : -1, down = batch.best - 1;
  for (const int32_t other : {up, down}) {
    if (other >= 0 && !batch.depths[static_cast<size_t>(other)].timed()) return other;
  }
  if (up < 0 || down < 0) return std::max(up, down);
  return batch.upwards ? down : up;
}

// What it brought long ago counts for little: the trial's own steps are to tell.
void DraftDepth::BeginTrial(Batch& batch, int32_t drafts) {
  Depth& depth = batch.depths[static_cast<size_t>(drafts)];
  batch.trial = drafts;
  batch.trial_left = batch.trial_steps;
  batch.since_trial = 0;
  if (drafts > batch.best && depth.reached > kRemembered) {
    depth.stood *= kRemembered / depth.reached;
    depth.reached = kRemembered;
  }
  Forget(depth.times, kKeptSteps);
}

void DraftDepth::Took(int32_t decodes, int32_t drafts, double seconds) {
  Depth& depth = Of(decodes).depths[static_cast<size_t>(drafts)];
  depth.times.push_back(seconds);
  Forget(depth.times, kMostSteps);
  depth.seconds = Median(depth.times);
  std::vector<double> off;
  for (const double time : depth.times) off.push_back(std::abs(time - depth.seconds));
  // Of a median of numbers that are spread as a bell: 1.25 deviations by the root of their number,
  // a deviation being 1.48 times the median distance.
  const double steps = std::sqrt(static_cast<double>(depth.times.size()));
  depth.doubt = 1.25 * 1.48 * Median(std::move(off)) / steps / depth.seconds;
  if (depth.times.size() < kKeptSteps) depth.doubt = std::max(depth.doubt, kFewDoubt / steps);
}

void DraftDepth::Verified(int32_t decodes, int32_t drafts, int32_t stood) {
  Batch& batch = Of(decodes);
  for (int32_t i = 1; i <= std::min(drafts, stood + 1); ++i) {
    Depth& depth = batch.depths[static_cast<size_t>(i)];
    if (depth.reached >= kMostReached) depth.reached /= 2, depth.stood /= 2;
    depth.reached += 1;
    if (i <= stood) depth.stood += 1;
  }
}

}  // namespace fathom
