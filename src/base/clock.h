// Time as an argument, so that the simulation can own it.
#pragma once

#include <chrono>
#include <cstdint>

namespace fathom {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;  // monotonic, from an arbitrary origin
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Of the steady clock, for measurements.
inline double SecondsNow() {
  return static_cast<double>(SteadyClock().NowNs()) * 1e-9;
}

// A clock that stands still until it is told to move.
class VirtualClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void AdvanceNs(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace fathom
