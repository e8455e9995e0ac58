// The fields that every request for text has.
#pragma once

#include <string>
#include <vector>

#include "server/json_fields.h"
#include "server/openai_request.h"

namespace fathom {

// All but max_tokens and logprobs, which chat and completions spell differently.
void ReadParams(RequestFields& fields, const RequestLimits& limits, GenerationParams* params);
// Once max_tokens is known.
void CheckMinTokens(RequestFields& fields, const GenerationParams& params);
std::vector<TokenId> ReadTokens(RequestFields& fields, const char* key,
                                const boost::json::array& list, int32_t vocab_size);
// The rest of a sentence.
std::string TooManyChoices(const RequestLimits& limits);

}  // namespace fathom
