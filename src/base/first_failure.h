// Why something cannot be relied on any more, told by whichever thread finds out first.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace fathom {

// THREAD: any.
class FirstFailure {
 public:
  // Of several, the first stays.
  void Set(Status why) {
    std::lock_guard lock(mutex_);
    if (failed()) return;
    why_ = std::move(why);
    failed_.store(true, std::memory_order_release);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // OK while there was none.
  Status status() const { return failed() ? why_ : Status(); }

 private:
  std::mutex mutex_;
  Status why_;  // written once, before failed_ is, under mutex_
  std::atomic<bool> failed_{false};
};

}  // namespace fathom
