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

}  // namespace fathom
