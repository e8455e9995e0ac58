// When a compiler of grammars is to give up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/status.h"

namespace fathom {

// Of what this thread compiles while this lives.
class CompileLimit {
 public:
  // `time`: of the thread's own work, whatever others take of its core. `stopping`: nobody waits.
  CompileLimit(std::chrono::milliseconds time, const std::atomic<bool>& stopping);
  ~CompileLimit();
  CompileLimit(const CompileLimit&) = delete;

  // Of this thread's limit: kInvalidArgument once its time is over, kCancelled when nobody waits.
  // Without one nothing is bounded. To be asked every few milliseconds of work.
  static Status Check();

 private:
  const std::chrono::milliseconds time_;
  const int64_t end_ns_;
  const std::atomic<bool>& stopping_;
};

}  // namespace fathom
