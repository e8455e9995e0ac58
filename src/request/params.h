// What a request asks, and hears of its tokens: plain data that every floor from scheduler to
// server shares.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace fathom {

inline constexpr int32_t kMaxTopLogprobs = 20;       // as the OpenAI API
inline constexpr int32_t kMaxLogprobTokenIds = 128;  // a request; as vLLM
inline constexpr int32_t kMaxLogitBias = 1024;       // entries a request
inline constexpr int32_t kMaxStopTokens = 64;        // a request

// Applied in this order: logit_bias, repetition, frequency and presence penalties, ban of stop
// tokens before min_tokens, mask of a grammar, temperature, top_k, top_p, min_p. Log-probabilities
// are those of the model: before all of these.
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy, ties to the lower id
  int32_t top_k = 0;                // 0: no limit
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]: relative to the likeliest token
  float presence_penalty = 0.0f;    // over generated tokens
  float frequency_penalty = 0.0f;   // over generated tokens
  float repetition_penalty = 1.0f;  // 0.001 or more; over prompt and generated tokens
  uint64_t seed = 0;                // Philox key; the counter is the token's position
  int32_t logprobs = -1;            // -1: none; else how many likeliest tokens to report, 0..20
  // Reported instead of the likeliest, in this order; empty: the likeliest. With logprobs >= 0.
  std::vector<TokenId> logprob_token_ids;
  std::vector<std::pair<TokenId, float>> logit_bias;

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// One copy, shared as `const` by the scheduler, the engine and, by way of a plan's openings, the
// device side.
struct RequestParams {
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  std::vector<TokenId> stop_tokens;  // EOS tokens included, unless the request ignores EOS
  int32_t max_tokens = 16;           // 1 or more
  int32_t min_tokens = 0;            // stop tokens are not sampled, and end nothing, before
  int32_t prompt_logprobs = -1;      // -1: none; else as SamplingParams::logprobs, for the prompt
  bool masked = false;               // rows that sample wait for masks

  friend bool operator==(const RequestParams&, const RequestParams&) = default;
};

// Of one position: the log-probability of the token that stands there, and of the likeliest ones,
// or of those that the request named.
struct TokenLogprobs {
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // likeliest first, ties to the lower id; or as named
};

}  // namespace fathom
