#include "checkpoint/read_window.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

constexpr uint64_t kAll = UINT64_MAX;

}  // namespace

ReadWindow::ReadWindow(std::vector<int> stages, uint64_t bytes)
    : stages_(std::move(stages)), bytes_(bytes), passed_(stages_.size(), 0) {}

uint64_t ReadWindow::Slowest(int stage) const {
  uint64_t slowest = kAll;
  for (size_t rank = 0; rank < stages_.size(); ++rank) {
    if (stages_[rank] == stage) slowest = std::min(slowest, passed_[rank]);
  }
  return slowest;
}

// The slowest never waits, so that one of each stage always reads on.
Status ReadWindow::Wait(int rank) {
  const auto at = static_cast<size_t>(rank);
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [&] { return !failure_.ok() || passed_[at] - Slowest(stages_[at]) <= bytes_; });
  return failure_;
}

bool ReadWindow::Pass(int rank, uint64_t bytes) {
  const auto at = static_cast<size_t>(rank);
  const std::lock_guard lock(mutex_);
  const uint64_t before = Slowest(stages_[at]);
  passed_[at] += bytes;
  const uint64_t slowest = Slowest(stages_[at]);
  if (slowest > before) moved_.notify_all();
  // As all read in one order, the others have passed what begins before the place that they are at.
  return slowest == passed_[at];
}

void ReadWindow::Leave(int rank, const Status& status) {
  const std::lock_guard lock(mutex_);
  passed_[static_cast<size_t>(rank)] = kAll;
  if (failure_.ok()) failure_ = status;
  moved_.notify_all();
}

}  // namespace fathom
