// One pass of sampling: hidden states of chosen tokens -> logits -> tokens and log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "ops/op_runner.h"
#include "ops/ops.h"
#include "sampling/slots.h"
#include "tensor/device.h"

namespace fathom {

struct SamplerCapacity {
  int64_t rows = 0;  // of one pass
  int64_t vocab = 0;
  int64_t hidden = 0;
};

// Log-probabilities of one row, on the host.
struct RowLogprobs {
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // likeliest first
};

// A pass is GatherHidden(), the model's Logits() into logits(), then Sample() and LogProbs() as
// wanted. THREAD: one at a time.
class Sampler {
 public:
  Sampler(SamplerCapacity capacity, const Ops& ops, Device& device);

  int64_t max_rows() const { return capacity_.rows; }

  // Starts a pass over the tokens at `index`: their hidden states, [rows, hidden].
  TensorView GatherHidden(const TensorView& hidden, std::span<const int32_t> index);
  TensorView live() const { return live_; }                         // I32 [1]: the pass's rows
  TensorView logits() const { return logits_.Slice(0, 0, rows_); }  // F32 [rows, vocab]: raw

  // Draws a token for every row: row i of `slots` and `positions` (of the new token). Leaves the
  // raw logits as they are. Returns I32 [rows]; -1 where a row has NaN.
  TensorView Sample(std::span<const SlotId> slots, std::span<const int32_t> positions,
                    const SlotState& state);

  // Advances the slots of a step past it. `sampled_index`: for every row of the step, which row of
  // this pass it is, or -1.
  void Commit(const TensorView& row_slot, const TensorView& row_begin, const TensorView& positions,
              const TensorView& live_rows, std::span<const int32_t> sampled_index,
              const SlotState& state);

  // Log-probabilities of the drawn tokens (or of `tokens`, when given), and of the `top` likeliest.
  std::vector<RowLogprobs> LogProbs(std::span<const TokenId> tokens, int32_t top);

  // The drawn tokens on the host; nothing where a row has NaN.
  std::vector<std::optional<TokenId>> Tokens();

 private:
  template <class T>
  TensorView Upload(const TensorView& to, std::span<const T> from);

  SamplerCapacity capacity_;
  OpRunner run_;
  std::unique_ptr<DeviceMemory> memory_;
  TensorView index_, live_, row_slot_, position_, tokens_, ok_, given_tokens_, sampled_index_;
  TensorView hidden_, logits_, adjusted_, logprob_, top_ids_, top_logprobs_;
  int64_t rows_ = 0;
};

}  // namespace fathom
