// One simulated run: a few hundred requests of all kinds against a small engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/fake_device.h"

namespace fathom::simulation {

struct Report {
  std::vector<std::string> complaints;  // none, if all is well
  uint64_t hash = 0;                    // of all plans, outputs and their times
  int64_t steps = 0;
  int64_t preemptions = 0;
  // Requests, by how they went.
  int64_t refused_full = 0;
  int64_t refused_never_fit = 0;
  int64_t stopped = 0;
  int64_t full_length = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;
  int64_t requests() const {
    return refused_full + refused_never_fit + stopped + full_length + cancelled + failed;
  }
  Report& operator+=(const Report& other);
};

// A pure function of its arguments.
Report Simulate(uint64_t seed, int requests, Fault fault = Fault::kNone);

}  // namespace fathom::simulation
