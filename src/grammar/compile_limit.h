// When a compiler of grammars is to give up.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace fathom {

// This thread's own work so far, whatever others take of its core.
int64_t ThreadNs();

// Of what this thread compiles while this lives.
class CompileLimit {
 public:
  // `time`: of the thread's own work, whatever others take of its core. `bytes`: that it takes of
  // the heap (ThreadBytes()). `nobody_waits`: asked often.
  CompileLimit(std::chrono::milliseconds time, size_t bytes, std::function<bool()> nobody_waits);
  ~CompileLimit();
  CompileLimit(const CompileLimit&) = delete;

  // Of this thread's limit: kInvalidArgument once its time is over or its memory is taken,
  // kCancelled when nobody waits. Without one nothing is bounded. To be asked every few
  // milliseconds of work.
  static Status Check();

 private:
  const std::chrono::milliseconds time_;
  const int64_t end_ns_;
  const size_t bytes_;
  const int64_t end_bytes_;
  const std::function<bool()> nobody_waits_;
};

}  // namespace fathom
