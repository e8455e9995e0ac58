// vLLM's fields that say which tokens an answer may hold: allowed_token_ids and bad_words.
#pragma once

#include <memory>
#include <optional>

#include "grammar/grammar.h"
#include "server/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// Refuses by name what they contradict. Once params->grammar is known.
void ReadTokenRules(RequestFields& fields, const RequestLimits& limits, GenerationParams* params);

// Whether the request asked for either.
bool HasTokenRules(const GenerationParams& params);

// Null where neither was asked for. A bad word is banned as the tokens that it has alone, and
// behind a space.
std::optional<ApiError> GrammarOfTokens(const GenerationParams& params, const Tokenizer& tokenizer,
                                        const std::vector<TokenId>& eos, int32_t vocab_size,
                                        std::shared_ptr<const Grammar>* grammar);

}  // namespace fathom
