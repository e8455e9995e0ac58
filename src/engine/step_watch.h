// Gives up a device that does not end in time what it was asked for, while the rank's own thread
// may be stuck in asking.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "tensor/device.h"

namespace fathom {

// "step 7, of 1 row and 2 tokens,", or without a number "step, of 1 row and 2 tokens,".
std::string StepText(std::optional<uint64_t> step, int64_t rows, int64_t tokens);
// "WHAT has not ended in 120 s": why a device is given up.
std::string HasNotEnded(const std::string& what, double seconds);

// How long the thread of a failed device may take to come back. One that does not is left: the
// process says whose it is, and ends with status 1.
inline constexpr std::chrono::seconds kLeave{3};
[[noreturn]] void LeaveRank(const Status& why, int rank);

class StepWatch {
 public:
  // `on_failure`: called with why once the device was given up, which must outlive this; may be
  // empty. `rank`: of the layout.
  StepWatch(Device& device, int rank, double timeout_s,
            std::function<void(const Status&)> on_failure)
      : device_(device), rank_(rank), timeout_(timeout_s), on_failure_(std::move(on_failure)) {}

  // THREAD: the rank's. What begins, as HasNotEnded() takes it, and that it is over.
  void Begin(std::string what);
  void End() { Begin(""); }

  // Looks on until `done` is ready, which the rank's thread makes so. THREAD: another.
  template <class T>
  void Until(const std::future<T>& done) {
    while (done.wait_for(kLook) != std::future_status::ready) Look();
  }

 private:
  static constexpr std::chrono::milliseconds kLook{20};
  void Look();

  Device& device_;
  const int rank_;
  const std::chrono::duration<double> timeout_;
  const std::function<void(const Status&)> on_failure_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::string what_;  // empty: nothing
  std::chrono::steady_clock::time_point since_;
  bool given_up_ = false;
};

}  // namespace fathom
