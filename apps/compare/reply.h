// What a server answered, out of its JSON: tokens and their log-probabilities. Nothing of it is
// trusted: whatever is missing, of another type or impossible is an error that names it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/messages.h"

namespace fathom {

struct Answer {
  std::vector<GeneratedToken> tokens;
  std::vector<TokenLogprobs> prompt;  // of positions 1..; empty: the server gave none
};

struct AskedPrompt {
  std::span<const TokenId> tokens;
  int32_t vocab_size = 0;  // ids are below
};

// Of vLLM's and fathom's /v1/completions: token_ids, or names like "token_id:5", say what was
// generated; prompt_logprobs, where it is there, what the prompt's tokens have.
Result<Answer> ReadCompletion(std::string_view body, const AskedPrompt& asked);
// Of a request with echo: the prompt's log-probabilities alone.
Result<std::vector<TokenLogprobs>> ReadEcho(std::string_view body, const AskedPrompt& asked);
// Of SGLang's /generate.
Result<Answer> ReadNative(std::string_view body, const AskedPrompt& asked);
// Of /tokenize: {"tokens": [...]}.
Result<std::vector<TokenId>> ReadTokenized(std::string_view body, int32_t vocab_size);

}  // namespace fathom
