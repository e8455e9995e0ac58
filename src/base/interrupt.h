// Tells work that is done for somebody when to end early: they have left, or it takes too long.
#pragma once

#include <atomic>
#include <chrono>

#include "base/status.h"

namespace fathom {

class Interrupt {
 public:
  // `everybody`, if given, raises it too, as long as it is true; it outlives this.
  explicit Interrupt(std::chrono::milliseconds time, const std::atomic<bool>* everybody = nullptr)
      : time_(time), deadline_(std::chrono::steady_clock::now() + time), everybody_(everybody) {}

  void Raise() { raised_ = true; }  // THREAD: any
  // The time begins now. THREAD: the worker's.
  void Restart() { deadline_ = std::chrono::steady_clock::now() + time_; }

  // kCancelled once raised, kResourceExhausted once the time is over. To be asked every
  // millisecond or so of work; takes some 30 ns.
  Status Check() const {
    if (raised_ || (everybody_ != nullptr && *everybody_)) return Cancelled("nobody waits for it");
    if (std::chrono::steady_clock::now() <= deadline_) return {};
    return ResourceExhausted("Reading the request takes more than {} s: shorten it.",
                             static_cast<double>(time_.count()) / 1000);
  }

 private:
  const std::chrono::milliseconds time_;
  std::chrono::steady_clock::time_point deadline_;
  const std::atomic<bool>* const everybody_;
  std::atomic<bool> raised_{false};
};

}  // namespace fathom
