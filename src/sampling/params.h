// What a request asks of the sampler, and hears from it: plain data.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace fathom {

inline constexpr int32_t kMaxTopLogprobs = 20;   // as the OpenAI API
inline constexpr int32_t kMaxLogitBias = 1024;   // entries a request
inline constexpr int32_t kMaxBannedTokens = 64;  // stop tokens a request

// Applied in this order: logit_bias, repetition, frequency and presence penalties, ban of stop
// tokens before min_tokens, temperature, top_k, top_p, min_p. Log-probabilities are those of the
// model: before all of these.
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
  std::vector<std::pair<TokenId, float>> logit_bias;
};

// Of one position: the log-probability of the token that stands there, and of the likeliest ones.
struct TokenLogprobs {
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // likeliest first, ties to the lower id
};

}  // namespace fathom
