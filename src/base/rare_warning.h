// Says when something that may happen often is to be said in the log again.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace fathom {

// THREAD: any.
class RareWarning {
 public:
  static constexpr int64_t kBetweenMs = 10'000;

  explicit RareWarning(const Clock& clock) : clock_(clock) {}

  // Once in so much time how often it has happened since the last time that it was to be said, this
  // time included.
  std::optional<int64_t> OnHappened() {
    std::lock_guard lock(mutex_);
    ++happened_;
    const int64_t now_ns = clock_.NowNs();
    if (said_ns_ && now_ns - *said_ns_ < kBetweenMs * 1'000'000) return std::nullopt;
    said_ns_ = now_ns;
    return std::exchange(happened_, 0);
  }

 private:
  const Clock& clock_;
  std::mutex mutex_;
  std::optional<int64_t> said_ns_;  // guarded by mutex_
  int64_t happened_ = 0;            // guarded by mutex_
};

}  // namespace fathom
