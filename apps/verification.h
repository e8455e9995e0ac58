// What `fathom verify` compares: a model, step by step, with what another implementation computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/attention_form.h"
#include "engine/step_runner.h"
#include "engine/step_watch.h"
#include "model/model.h"
#include "reference_file.h"
#include "scheduler/one_request.h"
#include "tensor/device.h"

namespace fathom {

// Exact arithmetic must agree to fp32's rounding.
inline constexpr double kExactLimit = 1e-4;

struct VerifyReport {
  std::vector<double> relative_errors;  // of each prompt's logits: ||a - b|| / ||b||
  std::vector<double> position_errors;  // of each position's
  double max_logprob_error = 0;         // of the stored likeliest tokens
  bool greedy_equal = true;
  bool drafts_equal = true;
  int64_t greedy_tokens = 0, draft_tokens = 0;
  int64_t draft_near_ties = 0;                // counted as equal: see IsNearTie
  uint64_t logits_hash = 0xcbf29ce484222325;  // FNV-1a of the bits of all logits, in order
  double limit = 0;
  bool tokens_must_match = false;
  bool ranks_agree = true;  // each rank's logits have the same bits

  double max_error() const;
  double median_error() const;
  double median_position_error() const;  // what rounding costs where it turned no router
  double positions_beyond_limit() const;
  bool passed() const;
};

// Makes plans of its own, with no scheduler. Tokens take their own form (FormOfToken), or all of
// them the one that a test forces: generated ones too, which no server expands.
class Verification {
 public:
  // `model` and `device` must outlive it. `forced_form`: of every token; absent: its own.
  Verification(Model& model, Device& device, int64_t prefill_chunk,
               std::optional<AttentionForm> forced_form);

  // Each step is watched. REQUIRES: the model has an MTP layer if the prompt has drafts.
  void Run(const ReferencePrompt& p, StepWatch& watch, VerifyReport& report);

 private:
  OneRequest Request(std::span<const TokenId> prompt, size_t max_tokens) const;
  AttentionForm FormOfNext(const OneRequest& request) const;
  // Computes the tokens that follow. Calls `visit(plan, hidden)` after each step, with the
  // final-normed hidden states of its row.
  template <class Visit>
  void Feed(OneRequest& request, std::span<const TokenId> tokens, const Visit& visit);
  std::vector<float> Logits(const TensorView& hidden, VerifyReport& report);

  // Compares the prompt's logits; returns the likeliest next token.
  TokenId Prefill(const ReferencePrompt& p, OneRequest& request, VerifyReport& report);
  // Decodes one token at a time, each after the reference's own, so that one slip is one slip.
  void Greedy(const ReferencePrompt& p, TokenId next, OneRequest& request, VerifyReport& report);
  // The MTP layer at position t sees the hidden state of t and the token at t + 1.
  void Drafts(const ReferencePrompt& p, VerifyReport& report);

  Model& model_;
  Device& device_;
  const size_t vocab_;
  const int32_t num_pages_;
  StepRunner runner_;
  StepWatch* watch_ = nullptr;  // of Run()
  const size_t prefill_chunk_;
  const std::optional<AttentionForm> forced_form_;
};

}  // namespace fathom
