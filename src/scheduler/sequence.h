// What the scheduler knows of one request.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <tuple>
#include <vector>

#include "base/ids.h"
#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "request/params.h"

namespace fathom {

enum class SequenceState {
  kWaiting,  // for a slot and pages; after a preemption perhaps still for its rows in flight
  kRunning,
  kEnded,  // still in flight; its results are dropped
};

// "Planned" counts what stands in plans, "in flight" what has no result yet.
struct Sequence {
  RequestId id{};
  std::shared_ptr<const RequestParams> params;
  uint64_t client = 0;       // who asks
  int32_t priority = 0;      // a lower one comes before
  uint64_t turn = 0;         // those that run and wait are in order of (priority, turn, arrival)
  uint64_t arrival = 0;      // order of Add()
  int32_t final_length = 0;  // prompt and generated tokens at which it ends at the latest
  std::vector<TokenId> generated;
  SequenceState state = SequenceState::kWaiting;
  int32_t prompt_planned = 0;  // prompt positions planned in any life, so that none reports twice
  PrefixChain prefix;          // full pages of its prompt; none: it shares nothing
  // Tokens of those pages behind them that have generated ones, if these are shared too.
  std::deque<std::array<TokenId, kPageTokens>> decoded_pages;
  int32_t cached_tokens = -1;  // of its prompt, found when it first entered a slot; -1: it has not
  int32_t preemptions = 0;
  // While it waits: the page that another request of this group computes, and that it will share.
  int32_t awaited_group = -1;
  PrefixKey awaited{};

  // Of this life: from entering a slot to the end or a preemption.
  int32_t group = -1;
  SlotId slot{-1};  // of the group
  std::vector<PageRef> pages;
  int32_t pages_planned = 0;  // of `pages`, those that a plan has handed to the device
  int32_t prefill_end = 0;    // tokens known on entering the slot: computed as a prefill
  int32_t prefilled = 0;      // of them, planned
  int32_t published = 0;      // leading pages that others may share
  bool publishes = true;      // those behind them too, once they are written
  int32_t rows_in_flight = 0;
  int32_t samples_in_flight = 0;  // rows that sample: each brings a token at least
  int32_t tokens_in_flight = 0;   // that these rows bring at most
  uint64_t sampled_in = 0;        // the step of the last row that samples; set before it decodes

  int32_t prompt_size() const { return static_cast<int32_t>(params->prompt.size()); }
  int32_t length() const { return prompt_size() + static_cast<int32_t>(generated.size()); }
  bool prefilling() const { return prefilled < prefill_end; }
  // Positions planned: where the next row begins, at the least and at the most.
  int32_t planned_least() const {
    return prefilling() ? prefilled : length() + samples_in_flight - 1;
  }
  int32_t planned_most() const {
    return prefilling() ? prefilled : std::min(length() + tokens_in_flight, final_length) - 1;
  }
  // Whether every token that it may generate is generated or surely in flight.
  bool fully_planned() const {
    return !prefilling() && length() + samples_in_flight >= final_length;
  }
  // REQUIRES: position < length().
  TokenId token(int32_t position) const {
    return position < prompt_size() ? params->prompt[static_cast<size_t>(position)]
                                    : generated[static_cast<size_t>(position - prompt_size())];
  }
};

inline bool ComesBefore(const Sequence* a, const Sequence* b) {
  return std::tie(a->priority, a->turn, a->arrival) < std::tie(b->priority, b->turn, b->arrival);
}

}  // namespace fathom
