#include "simulation/pretend_model.h"

#include <algorithm>
#include <limits>

#include "base/rng.h"

namespace fathom::simulation {

uint64_t PretendModel::Hash(uint64_t a, uint64_t b, uint64_t c) const {
  const auto bits = Philox4x32({static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                                static_cast<uint32_t>(b), static_cast<uint32_t>(c)},
                               {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return uint64_t{bits[0]} << 32 | bits[1];
}

TokenId PretendModel::Next(RequestId request, int32_t position, TokenId previous,
                           const std::vector<TokenId>& banned) const {
  auto token = static_cast<int32_t>(Hash(Raw(request), position, Raw(previous)) % kVocab);
  while (std::find(banned.begin(), banned.end(), TokenId{token}) != banned.end()) {
    token = (token + 1) % kVocab;
  }
  return TokenId{token};
}

TokenId PretendModel::Next(RequestId request, const RequestParams& params, int32_t position,
                           TokenId previous, int64_t generated) const {
  const bool may_stop = generated >= params.min_tokens;
  return Next(request, position, previous, may_stop ? std::vector<TokenId>{} : params.stop_tokens);
}

std::vector<TokenId> PretendModel::Drafts(RequestId request, const RequestParams& params,
                                          int32_t position, TokenId last, int64_t generated,
                                          int32_t most) const {
  const uint64_t skill = Hash(Raw(request), 0, 6000) % 9;  // of 8
  const auto proposed = static_cast<int32_t>(Hash(Raw(request), position, 7000) % (most + 1));
  std::vector<TokenId> drafts;
  for (int32_t i = 0; i < proposed; ++i) {
    last = Next(request, params, position + 1 + i, last, generated + i);
    if (Hash(Raw(request), position, 8000 + i) % 8 >= skill)
      last = TokenId{(Raw(last) + 1) % kVocab};
    drafts.push_back(last);
  }
  return drafts;
}

float PretendModel::PromptLogprob(RequestId request, int32_t position, TokenId token) const {
  return -static_cast<float>(Hash(Raw(request), position, 1000 + Raw(token)) % 4096);
}

int32_t PretendModel::FirstNaN(RequestId request) const {
  const uint64_t hash = Hash(Raw(request), 0, 5000);
  return hash % 16 == 0 ? static_cast<int32_t>(hash / 16 % 256)
                        : std::numeric_limits<int32_t>::max();
}

RequestOutput PretendModel::Answer(const GenerateRequest& request, int32_t max_model_len) const {
  RequestOutput answer;
  answer.id = request.id;
  int32_t length = static_cast<int32_t>(request.prompt.size());
  TokenId last = request.prompt.back();
  while (!answer.finish) {
    if (FirstNaN(request.id) < length) {
      answer.finish = FinishReason::kError;
      break;
    }
    const auto generated = static_cast<int32_t>(answer.tokens.size());
    const bool may_stop = generated >= request.min_tokens;
    last = Next(request.id, request, length, last, generated);
    answer.tokens.push_back({.id = last, .logprobs = {}});
    ++length;
    const auto& stops = request.stop_tokens;
    if (may_stop && std::find(stops.begin(), stops.end(), last) != stops.end()) {
      answer.finish = FinishReason::kStop;
    } else if (generated + 1 == request.max_tokens || length == max_model_len) {
      answer.finish = FinishReason::kLength;
    }
  }
  if (request.prompt_logprobs >= 0 && !answer.tokens.empty()) {
    for (size_t at = 1; at < request.prompt.size(); ++at) {
      const auto position = static_cast<int32_t>(at);
      answer.prompt_logprobs.push_back(
          {.logprob = PromptLogprob(request.id, position, request.prompt[at]), .top = {}});
    }
  }
  return answer;
}

}  // namespace fathom::simulation
