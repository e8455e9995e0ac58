// One simulated run: a few hundred requests of all kinds against a small engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "simulation/fault.h"

namespace fathom::simulation {

struct Report {
  std::vector<std::string> complaints;  // none, if all is well
  uint64_t hash = 0;                    // of all plans, outputs and their times
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t drafts_accepted = 0;
  int64_t drafts_rejected = 0;
  int64_t rows_of_nothing = 0;  // planned ahead of an end
  int64_t moved = 0;            // to another group, by a preemption
  int64_t late_answers = 0;     // of a group, when another had finished its part of the step
  int64_t cached_tokens = 0;    // of prompts, that were found in pages of others
  int64_t computed_tokens = 0;  // of prompts
  int64_t stops = 0;            // of an engine with requests in it
  int64_t blocked_outputs = 0;
  // Requests, by how they went.
  int64_t refused_full = 0;
  int64_t refused_never_fit = 0;
  int64_t refused_stopping = 0;
  int64_t stopped = 0;  // by a stop token
  int64_t full_length = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;
  int64_t requests() const {
    return refused_full + refused_never_fit + refused_stopping + stopped + full_length + cancelled +
           failed;
  }
  Report& operator+=(const Report& other);
};

struct SimulationOptions {
  uint64_t seed = 0;
  int requests = 0;
  Fault fault = Fault::kNone;
  std::function<void(const std::string&)> trace = {};  // if set, of every plan and result
};

// A pure function of its options.
Report Simulate(const SimulationOptions& options);

}  // namespace fathom::simulation
