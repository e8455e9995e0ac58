// One step, as data: no pointers, so that a driver rank can broadcast it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace fathom {

// What one request contributes to a step: a run of consecutive tokens.
struct StepRow {
  SlotId slot{};
  RequestId request{};
  int32_t position = 0;    // absolute, of the first token
  int32_t num_tokens = 0;  // >= 1
  // The tokens of a prefill chunk; empty for a decode, whose token the device takes from the slot.
  std::vector<TokenId> tokens;
  // Appended to the slot's page table from entry `first_new_page` on.
  int32_t first_new_page = 0;
  std::vector<PageId> new_pages;
  bool samples = false;          // the last token's logits are sampled
  bool prompt_logprobs = false;  // log-probabilities of all its tokens' successors are wanted

  bool is_decode() const { return tokens.empty(); }
  friend bool operator==(const StepRow&, const StepRow&) = default;
};

// Rows are ordered decodes first, then prefill chunks by length, so that the rows that take the
// absorbed form come first.
struct StepPlan {
  uint64_t step = 0;
  std::vector<StepRow> rows;

  int64_t num_tokens() const {
    int64_t n = 0;
    for (const StepRow& row : rows) n += row.num_tokens;
    return n;
  }
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

inline constexpr size_t kMaxStepPlanBytes = 64 << 20;
inline constexpr int32_t kMaxStepRows = 1 << 16;

std::string Serialize(const StepPlan& plan);             // msgpack
Result<StepPlan> ParseStepPlan(std::string_view bytes);  // kDataLoss for what is malformed

}  // namespace fathom
