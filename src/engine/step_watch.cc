#include "engine/step_watch.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/printable.h"

namespace fathom {

std::string StepText(std::optional<uint64_t> step, int64_t rows, int64_t tokens) {
  return fmt::format("step{}, of {} and {},", step ? fmt::format(" {}", *step) : "",
                     Counted(rows, "row"), Counted(tokens, "token"));
}

std::string HasNotEnded(const std::string& what, double seconds) {
  return fmt::format("{} has not ended in {:g} s", what, seconds);
}

void LeaveRank(const Status& why, int rank) {
  fmt::print(stderr, "fathom: {}; rank {} does not come back, and is left\n", why.message(), rank);
  std::fflush(stderr);
  std::_Exit(1);
}

void StepWatch::Begin(std::string what) {
  std::lock_guard lock(mutex_);
  what_ = std::move(what);
  since_ = std::chrono::steady_clock::now();
}

void StepWatch::Look() {
  std::string what;
  {
    std::lock_guard lock(mutex_);
    const auto late = std::chrono::steady_clock::now() - since_ - timeout_;
    if (what_.empty() || late < late.zero()) return;
    if (given_up_ && late > kLeave) LeaveRank(device_.status(), rank_);
    if (std::exchange(given_up_, true)) return;
    what = what_;
  }
  device_.Abandon(HasNotEnded(what, timeout_.count()));
  if (on_failure_) on_failure_(device_.status());
}

}  // namespace fathom
