// Bounds of work that is done for one request: its memory and its time.
#pragma once

#include <cstddef>

#include "base/interrupt.h"
#include "base/memory_budget.h"
#include "base/status.h"

namespace fathom {

// What is null is not bounded. What it points to outlives the work.
struct WorkLimits {
  MemoryClaim* memory = nullptr;
  const Interrupt* interrupt = nullptr;

  Status Take(size_t bytes) const { return memory == nullptr ? Status() : memory->Grow(bytes); }
  Status Check() const { return interrupt == nullptr ? Status() : interrupt->Check(); }
};

// What is held beside a request's own limit until the end of the C++ block. THREAD: one.
class BesideClaim {
 public:
  explicit BesideClaim(const WorkLimits& limits) : memory_(limits.memory) {}
  ~BesideClaim() {
    if (memory_ != nullptr) memory_->ShrinkBeside(held_);
  }
  BesideClaim(const BesideClaim&) = delete;

  // At least so many bytes from now on. Errors: GrowBeside's.
  Status Hold(size_t bytes) {
    if (memory_ == nullptr || bytes <= held_) return {};
    TRY(memory_->GrowBeside(bytes - held_));
    held_ = bytes;
    return {};
  }
  size_t held() const { return held_; }

 private:
  MemoryClaim* const memory_;
  size_t held_ = 0;
};

}  // namespace fathom
