// One step, as data: everything that crosses from the scheduler to the device side, so that a
// driver rank can send it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/attention_form.h"
#include "base/ids.h"
#include "base/status.h"
#include "request/slot_opening.h"

namespace fathom {

inline constexpr int32_t kAtSlot = -1;  // StepRow::begin of a decode

// What one request contributes to a step: a run of consecutive tokens, all of one form.
struct StepRow {
  SlotId slot{};
  RequestId request{};
  AttentionForm form = AttentionForm::kAbsorbed;
  // Tokens that the host knows, from this position on. A decode has none: it begins at the slot's
  // length, with its last token, and the device alone knows both.
  int32_t begin = kAtSlot;
  std::vector<TokenId> tokens;
  int32_t drafts = 0;  // of a decode: at most so many of the slot's drafts are verified
  // Appended to the slot's page table from entry `first_new_page` on.
  int32_t first_new_page = 0;
  std::vector<PageId> new_pages;
  bool samples = false;          // a decode, or the last tokens known: the last one is sampled from
  bool masked = false;           // what may be sampled comes in the step's StepMasks
  bool prompt_logprobs = false;  // log-probabilities of all its tokens' successors are wanted

  bool is_decode() const { return tokens.empty(); }
  // A capacity: of a decode 0 to all of them are live, which the device decides from the slot.
  int32_t num_tokens() const {
    return is_decode() ? 1 + drafts : static_cast<int32_t>(tokens.size());
  }
  // The most tokens that it brings: of a decode one for each token that is live.
  int32_t logit_vectors() const { return !samples ? 0 : is_decode() ? num_tokens() : 1; }
  friend bool operator==(const StepRow&, const StepRow&) = default;
};

// What decides how a step runs. It says the same to every rank, so that all of them record, replay
// or enqueue alike and have room alike for what they exchange, without asking each other.
struct StepShape {
  // The most of any group: capacities.
  int32_t rows = 0;
  int32_t tokens = 0;
  int32_t logit_vectors = 0;
  // The same of those groups alone in which a row that samples wants log-probabilities.
  int32_t logprob_vectors = 0;
  // That are proposed behind it for each row that samples.
  int32_t drafts = 0;
  // A row of any group is expanded, or scores a prompt: no recorded step has such rows.
  bool eager = false;
  // A row of any group is of known tokens, of which a draft layer writes latents without drafts
  // too.
  bool known = false;

  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// One group's part of a step, as each of its ranks runs it; slots and pages are the group's own.
// Rows of known tokens come first, expanded ones before absorbed ones, then the decodes: so that
// where a row's tokens begin in the batch depends on decodes alone.
struct StepPlan {
  uint64_t step = 0;
  StepShape shape;                    // of the parts of all groups
  std::vector<SlotOpening> openings;  // before the rows run; each has a row
  std::vector<StepRow> rows;

  int64_t num_tokens() const {
    int64_t n = 0;
    for (const StepRow& row : rows) n += row.num_tokens();
    return n;
  }
  int64_t num_logit_vectors() const {
    int64_t n = 0;
    for (const StepRow& row : rows) n += row.logit_vectors();
    return n;
  }
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

// What the masked rows of a step's part may sample, in their order (base/token_mask.h): behind the
// row's first token, and behind each draft up to the first that is forbidden, one mask after
// another. None of a row change nothing: its request has ended. They follow the plan while the
// forward pass runs, as they need the tokens of the step before; sampling alone waits for them.
struct StepMasks {
  uint64_t step = 0;
  std::vector<std::vector<uint32_t>> masks;
};

// A step: the part of each group, all of the same number and shape. One without rows is run too,
// with no live token.
struct StepPlans {
  std::vector<StepPlan> groups;

  uint64_t step() const { return groups.front().step; }
  bool empty() const { return groups.empty(); }  // there is no step
  bool has_rows() const;
  std::vector<StepRow> Rows() const;  // of one group after another
};

// Makes `shape` hold the rows of `part`. `logprobs`: one of them that samples wants
// log-probabilities.
void Widen(StepShape& shape, const StepPlan& part, bool logprobs);

inline constexpr size_t kMaxStepPlanBytes = 256 << 20;
inline constexpr int32_t kMaxStepRows = 1 << 16;

std::string Serialize(const StepPlan& plan);             // msgpack
Result<StepPlan> ParseStepPlan(std::string_view bytes);  // kDataLoss for what is malformed

}  // namespace fathom
