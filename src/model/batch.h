// What one step's forward pass works on, and how it is made from rows and slots.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/attention_form.h"
#include "base/ids.h"
#include "ops/op_runner.h"
#include "ops/ops.h"
#include "ops/step_rows.h"
#include "tensor/buffer.h"

namespace fathom {

// A row that takes the expanded form of MLA.
struct ExpandedRow {
  int64_t token_begin = 0;  // of the batch
  int64_t num_tokens = 0;
  int64_t position = 0;  // absolute, of its first token
  SlotId slot{};
};

// Rows of known tokens come first, of these the expanded ones: all of their tokens are live, and
// where they stand is known to the host. Decodes follow, and how much of them is live the device
// alone knows. What is not expanded takes the absorbed form.
struct Batch {
  int64_t tokens = 0;       // capacity; how many are live is map.live
  int64_t step_tokens = 0;  // the most of any data-parallel group, which all ranks know alike
  int64_t expanded_tokens = 0;
  std::vector<ExpandedRow> expanded;
  TensorView ids;  // I32 [tokens]
  TokenMap map;
  TensorView absorbed_live;   // I32 [1]
  int64_t absorbed_rows = 0;  // capacity: of those the other tokens are of

  int64_t known_tokens = 0;  // of rows of known tokens
  TensorView known_live;     // I32 [1]: as many, for the device

  int64_t absorbed_tokens() const { return tokens - expanded_tokens; }
  // That part of a tensor [tokens, ...].
  TensorView Absorbed(const TensorView& view) const {
    return view.Slice(0, expanded_tokens, tokens);
  }
  // The rows of known tokens without the decodes, for what does not attend: what attention asks is
  // left out. It has room for a token even if there is none, as no op is without tokens.
  Batch Known() const;
};

// A row as the host knows it (scheduler/step_plan.h).
struct BatchRow {
  SlotId slot{};
  AttentionForm form = AttentionForm::kAbsorbed;
  int32_t begin = -1;               // absolute, of the first token; -1: a decode
  std::span<const TokenId> tokens;  // of a decode none: they are the slot's
  int32_t drafts = 0;               // of a decode
  bool samples = false;

  bool is_decode() const { return tokens.empty(); }
  int64_t num_tokens() const {
    return is_decode() ? 1 + drafts : static_cast<int64_t>(tokens.size());
  }
  int64_t logit_vectors() const { return !samples ? 0 : is_decode() ? num_tokens() : 1; }
};

struct BatchCapacity {
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t logit_vectors = 0;
  int64_t pass_vectors = 1;  // logit vectors of a pass

  friend bool operator==(const BatchCapacity&, const BatchCapacity&) = default;
};

// The device tensors of a step's inputs. One lives as long as its step.
class StepInputs {
 public:
  StepInputs(const BatchCapacity& capacity, Device& device);

  static size_t Bytes(const BatchCapacity& capacity);

  // Uploads the rows. The batch's shapes have room for `padded` rows, tokens and logit vectors;
  // zero: for those there are. Only a batch without expanded rows may be padded. `keeps_logits`:
  // log-probabilities of what is drawn may be asked for. REQUIRES: all within capacity; rows
  // ordered as in a StepPlan.
  Batch Stage(std::span<const BatchRow> rows, const SlotState& slots,
              const BatchCapacity& padded = {}, bool keeps_logits = true);
  // Computes on the device what the rows' tokens are, and which of them are live.
  void Prepare(OpRunner& run, const Batch& batch, const SlotState& slots) const;

  // Of the last Stage():
  const RowTensors& rows() const { return rows_; }
  const std::vector<LogitPass>& passes() const { return passes_; }

 private:
  StepInputs() = default;  // to measure
  size_t LayOut(Arena arena);
  void CutPasses();  // passes_, of logit_vectors_
  template <class Fill>
  void Upload(const TensorView& to, const Fill& fill);

  BatchCapacity capacity_;
  Device* device_ = nullptr;
  std::unique_ptr<DeviceMemory> memory_;
  // Uploaded:
  TensorView row_slot_, row_capacity_, plan_tokens_, plan_begin_, plan_samples_;
  // I32 [2 + passes]: rows, tokens of rows of known tokens, and of each pass LogitPass::kept
  TensorView counts_;
  // Computed:
  TensorView ids_, positions_, token_slot_, live_tokens_, absorbed_live_;
  TensorView row_begin_, row_count_, logit_begin_, logit_index_, logit_ordinal_, pass_live_;

  RowTensors rows_;
  std::vector<LogitPass> passes_;
  int64_t logit_vectors_ = 0;     // as shapes have it
  std::vector<int32_t> staging_;  // scratch
};

}  // namespace fathom
