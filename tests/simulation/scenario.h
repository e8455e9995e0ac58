// What a seed decides: the engine's options, the requests, and when what happens.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/messages.h"

namespace fathom::simulation {

struct Event {
  enum class Kind { kArrives, kCancels, kStops, kForgets };
  int64_t time_ns = 0;
  Kind kind = Kind::kArrives;
  size_t client = 0;
};

struct ScenarioClient {
  GenerateRequest request;
  size_t cancel_at_token = ~size_t{0};  // from inside the output callback
};

struct Scenario {
  EngineOptions options;
  std::vector<ScenarioClient> clients;
  std::vector<Event> events;  // by time
  // Of the outputs' consumer: one call in so many blocks, for up to 2^block_bits ns. 0: none does.
  uint32_t blocks_one_in = 0;
  uint32_t block_bits = 0;
  size_t stop_at_output = ~size_t{0};  // from inside the output callback: the stop of that number
};

// A pure function of what `rng` yields.
Scenario RandomScenario(Rng& rng, int requests);

}  // namespace fathom::simulation
