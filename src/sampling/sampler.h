// One pass of sampling: hidden states of chosen tokens -> logits -> tokens and log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// The rows of one pass, as the host knows them.
struct SamplerRows {
  std::span<const int32_t> index;  // of each row's token in the batch
  // To draw, for each row: its slot, and the position of the new token.
  std::span<const SlotId> slots = {};
  std::span<const int32_t> positions = {};
  // To commit, for each row of the step: which row of this pass it is, or -1.
  std::span<const int32_t> sampled_index = {};
  // Shapes have room for so many rows of the pass and of the step; 0: for those there are.
  int64_t padded = 0;
};

// A pass is Stage(), Gather(), the model's Logits() into logits(), then Sample(), Commit() and
// LogProbs() as wanted. Only Stage() uploads. THREAD: one at a time.
class Sampler {
 public:
  Sampler(SamplerCapacity capacity, const Ops& ops, Device& device);

  int64_t max_rows() const { return capacity_.rows; }

  void Stage(const SamplerRows& rows);
  // The hidden states of the pass's rows, [rows, hidden].
  TensorView Gather(const TensorView& hidden);
  TensorView live() const { return live_; }                         // I32 [1]: the pass's rows
  TensorView logits() const { return logits_.Slice(0, 0, rows_); }  // F32 [rows, vocab]: raw

  // Draws a token for every row; leaves the raw logits as they are.
  void Sample(const SlotState& state);

  // Advances the slots of a step past it.
  void Commit(const TensorView& row_slot, const TensorView& row_begin, const TensorView& positions,
              const TensorView& live_rows, const SlotState& state);

  // Log-probabilities of a pass on their way to the host.
  struct PassLogprobs {
    std::vector<float> logprobs, top_logprobs;
    std::vector<int32_t> top_ids;
    size_t rows() const { return logprobs.size(); }
    TokenLogprobs row(size_t row,
                      int32_t top) const;  // with the `top` likeliest, of those there are
  };
  // Those of the drawn tokens (or of `tokens`, when given), and of the `top` likeliest; `to` is
  // written once a later mark has been waited for.
  void LogProbs(std::span<const TokenId> tokens, int32_t top, PassLogprobs& to);

  // The drawn tokens on their way to the host.
  struct Drawn {
    std::vector<int32_t> ids, ok;
    std::optional<TokenId> token(size_t row) const {  // nothing where a row has NaN
      return ok[row] != 0 ? std::optional(TokenId{ids[row]}) : std::nullopt;
    }
  };
  // Enqueues their download: `drawn` is written once a later mark has been waited for.
  void Download(Drawn& drawn);

 private:
  template <class T>
  TensorView Upload(const TensorView& to, std::span<const T> from);

  SamplerCapacity capacity_;
  OpRunner run_;
  std::unique_ptr<DeviceMemory> memory_;
  TensorView identity_, index_, live_, row_slot_, position_, tokens_, ok_, given_tokens_,
      sampled_index_;
  TensorView hidden_, logits_, adjusted_, logprob_, top_ids_, top_logprobs_;
  int64_t live_rows_ = 0, rows_ = 0;  // of the pass; as shapes have it
};

}  // namespace fathom
