// What the targets share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/work_limits.h"

namespace fathom {

// A request's limits, smaller than the server's, so that a run has many.
struct FuzzLimits {
  static constexpr size_t kMost = size_t{16} << 20;

  MemoryBudget budget{size_t{64} << 20};
  MemoryClaim claim{budget};
  Interrupt interrupt{std::chrono::milliseconds(500)};

  FuzzLimits() { claim.SetLimit(kMost); }
  WorkLimits limits() { return {&claim, &interrupt}; }
};

inline std::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fathom
