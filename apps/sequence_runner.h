// One sequence through a model, without an engine: what `fathom verify` compares. Each of its rows
// is of the form that its own length asks for, so that a test can have every token in either form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "model/batch.h"
#include "model/kv_pool.h"
#include "model/model.h"
#include "sampling/sampler.h"
#include "sampling/slots.h"

namespace fathom {

class SequenceRunner {
 public:
  SequenceRunner(Model& model, Device& device);

  // Forgets the sequence.
  void Restart();
  // Computes the tokens that follow, in rows of at most `max_row`. Calls `visit(first, hidden)`
  // after each row with the position of its first token and its final-normed hidden states.
  template <class Visit>
  void Feed(std::span<const TokenId> tokens, int64_t max_row, Visit&& visit) {
    while (!tokens.empty()) {
      const size_t count = std::min(tokens.size(), static_cast<size_t>(max_row));
      const int64_t first = length_;
      visit(first, Forward(tokens.first(count)));
      tokens = tokens.subspan(count);
    }
  }
  // The MTP layer over the row just fed: `next` are the tokens that follow each of its tokens.
  TensorView ForwardMtp(std::span<const TokenId> next, const TensorView& hidden);
  // Logits of hidden states [first, first + count): [count, vocab].
  std::vector<float> Logits(const TensorView& hidden, int64_t first, int64_t count);

 private:
  TensorView Forward(std::span<const TokenId> tokens);
  Batch BuildRow(std::span<const TokenId> tokens, int64_t position);

  Model& model_;
  Device& device_;
  KvPool pool_;
  Slots slots_;
  StepInputs inputs_;
  Sampler sampler_;
  int64_t length_ = 0;
};

}  // namespace fathom
