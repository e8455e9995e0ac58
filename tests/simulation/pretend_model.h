// What the fake device computes: every answer is a pure function of the request, the position and
// the token before, so that anything lost, repeated or mixed up shows in the text.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/messages.h"

namespace fathom::simulation {

inline constexpr int32_t kVocab = 64;

class PretendModel {
 public:
  explicit PretendModel(uint64_t seed) : seed_(seed) {}

  // The token at `position` after `previous`; never one of `banned`.
  TokenId Next(RequestId request, int32_t position, TokenId previous,
               const std::vector<TokenId>& banned) const;
  // The same of a request that has generated `generated` tokens before it.
  TokenId Next(RequestId request, const RequestParams& params, int32_t position, TokenId previous,
               int64_t generated) const;
  // What is proposed to follow `last`, the newest of `generated` tokens, which stands at
  // `position`: none to `most` drafts. Some requests' are mostly right, others' mostly wrong.
  std::vector<TokenId> Drafts(RequestId request, const RequestParams& params, int32_t position,
                              TokenId last, int64_t generated, int32_t most) const;
  float PromptLogprob(RequestId request, int32_t position, TokenId token) const;
  // The first position whose logits are NaN; few requests have one.
  int32_t FirstNaN(RequestId request) const;

  // What a request must yield if nobody cancels it. `max_model_len` as the scheduler's.
  RequestOutput Answer(const GenerateRequest& request, int32_t max_model_len) const;

 private:
  uint64_t Hash(uint64_t a, uint64_t b, uint64_t c) const;
  const uint64_t seed_;
};

}  // namespace fathom::simulation
