// What the scheduler knows of one request.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "cache/page_pool.h"

namespace fathom {

// A request as the scheduler takes it.
struct SequenceSpec {
  RequestId id{};
  std::vector<TokenId> prompt;
  std::vector<TokenId> stop_tokens;
  int32_t max_tokens = 1;
  int32_t min_tokens = 0;  // stop tokens do not count before
  bool prompt_logprobs = false;
};

enum class SequenceState {
  kWaiting,  // for a slot and pages; after a preemption perhaps still for its rows in flight
  kRunning,
  kEnded,  // still in flight; its results are dropped
};

// "Planned" counts what stands in plans, "in flight" what has no result yet.
struct Sequence {
  SequenceSpec spec;
  uint64_t arrival = 0;      // order of Add()
  int64_t final_length = 0;  // prompt and generated tokens at which it ends at the latest
  std::vector<TokenId> generated;
  SequenceState state = SequenceState::kWaiting;
  int32_t prompt_planned = 0;  // prompt positions planned in any life, so that none reports twice

  // Of this life: from entering a slot to the end or a preemption.
  SlotId slot{-1};
  std::vector<PageRef> pages;
  int32_t pages_planned = 0;  // of `pages`, those that a plan has handed to the device
  int32_t prefill_end = 0;    // tokens known on entering the slot: computed as a prefill
  int32_t planned = 0;        // positions planned
  int32_t rows_in_flight = 0;
  int32_t samples_in_flight = 0;

  int32_t prompt_size() const { return static_cast<int32_t>(spec.prompt.size()); }
  int32_t length() const { return prompt_size() + static_cast<int32_t>(generated.size()); }
  bool prefilling() const { return planned < prefill_end; }
  // Whether every token that it may generate is generated or in flight.
  bool fully_planned() const {
    return !prefilling() && length() + samples_in_flight >= final_length;
  }
  // REQUIRES: position < length().
  TokenId token(int32_t position) const {
    return position < prompt_size() ? spec.prompt[position] : generated[position - prompt_size()];
  }
};

}  // namespace fathom
