#include "engine/check_request.h"

namespace fathom {
namespace {

Status CheckTokens(const char* what, const std::vector<TokenId>& tokens, int32_t vocab_size) {
  for (TokenId token : tokens) {
    if (Raw(token) < 0 || (vocab_size > 0 && Raw(token) >= vocab_size)) {
      return InvalidArgument("{} token {} is not in the vocabulary of {} tokens", what, Raw(token),
                             vocab_size);
    }
  }
  return {};
}

Status CheckGrammar(const GenerateRequest& request, int32_t vocab_size) {
  if (vocab_size <= 0) return Unimplemented("an engine of no known vocabulary takes no grammar");
  if (request.min_tokens > 0) {
    return InvalidArgument("min_tokens is {}: with a grammar, it alone says when an answer may end",
                           request.min_tokens);
  }
  if (request.stop_tokens.empty()) {
    return InvalidArgument("a grammar needs a stop token, which ends its answer");
  }
  return {};
}

}  // namespace

Status CheckRequest(const GenerateRequest& request, int32_t vocab_size) {
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return InvalidArgument("min_tokens is {}: it must be between 0 and max_tokens, which is {}",
                           request.min_tokens, request.max_tokens);
  }
  if (request.stop_tokens.size() > static_cast<size_t>(kMaxStopTokens)) {
    return InvalidArgument("{} stop tokens: at most {} are possible", request.stop_tokens.size(),
                           kMaxStopTokens);
  }
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kMaxTopLogprobs) {
    return InvalidArgument("prompt_logprobs is {}: it must be between 0 and {}, or -1 for none",
                           request.prompt_logprobs, kMaxTopLogprobs);
  }
  const SamplingParams& sampling = request.sampling;
  if (sampling.logprobs < -1 || sampling.logprobs > kMaxTopLogprobs) {
    return InvalidArgument("logprobs is {}: it must be between 0 and {}, or -1 for none",
                           sampling.logprobs, kMaxTopLogprobs);
  }
  if (sampling.logprob_token_ids.size() > static_cast<size_t>(kMaxLogprobTokenIds)) {
    return InvalidArgument("{} logprob_token_ids: at most {} are possible",
                           sampling.logprob_token_ids.size(), kMaxLogprobTokenIds);
  }
  if (!sampling.logprob_token_ids.empty() && sampling.logprobs < 0) {
    return InvalidArgument("logprob_token_ids without logprobs: set both");
  }
  if (sampling.logit_bias.size() > static_cast<size_t>(kMaxLogitBias)) {
    return InvalidArgument("{} entries in logit_bias: at most {} are possible",
                           sampling.logit_bias.size(), kMaxLogitBias);
  }
  for (const auto& [token, bias] : sampling.logit_bias) {
    TRY(CheckTokens("logit_bias", {token}, vocab_size));
  }
  TRY(CheckTokens("logprob_token_ids", sampling.logprob_token_ids, vocab_size));
  TRY(CheckTokens("prompt", request.prompt, vocab_size));
  TRY(CheckTokens("stop", request.stop_tokens, vocab_size));
  return request.grammar ? CheckGrammar(request, vocab_size) : Status();
}

}  // namespace fathom
