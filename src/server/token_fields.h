// vLLM's fields that name tokens: which an answer may hold (allowed_token_ids, bad_words), and
// whose log-probabilities it shows (logprob_token_ids).
#pragma once

#include <memory>
#include <optional>

#include "grammar/grammar.h"
#include "server/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// Refuses by name what they contradict. Once params->grammar is known.
void ReadTokenRules(RequestFields& fields, const RequestLimits& limits, GenerationParams* params);

// logprob_token_ids, each once. Once all other fields are known that it needs: of completions
// max_tokens and echo, of both logprobs.
void ReadLogprobTokenIds(RequestFields& fields, const RequestLimits& limits,
                         GenerationParams* params);

// Whether the request asked for allowed_token_ids or bad_words.
bool HasTokenRules(const GenerationParams& params);

// Null where neither was asked for. A bad word is banned as the tokens that it has alone, and
// behind a space.
std::optional<ApiError> GrammarOfTokens(const GenerationParams& params, const Tokenizer& tokenizer,
                                        const std::vector<TokenId>& eos, int32_t vocab_size,
                                        std::shared_ptr<const Grammar>* grammar);

}  // namespace fathom
