#include "server/token_fields.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "grammar/token_rules.h"
#include "server/generation_params.h"
#include "server/prompt_encoder.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr size_t kMaxBadWords = 256;

void ReadBadWords(RequestFields& fields, const json::array& words, GenerationParams* params) {
  for (const json::value& word : words) {
    const bool good =
        word.is_string() && !word.get_string().empty() && word.get_string().size() <= kMaxStopBytes;
    if (!good || words.size() > kMaxBadWords) {
      fields.Fail("bad_words",
                  fmt::format("bad_words must be at most {} strings of 1 to {} bytes each",
                              kMaxBadWords, kMaxStopBytes));
      return;
    }
    params->bad_words.emplace_back(std::string_view(word.get_string()));
  }
}

}  // namespace

void ReadTokenRules(RequestFields& fields, const RequestLimits& limits, GenerationParams* params) {
  if (const json::array* ids = fields.Array("allowed_token_ids")) {
    params->allowed_token_ids = ReadTokens(fields, "allowed_token_ids", *ids, limits.vocab_size);
    if (ids->empty()) fields.Fail("allowed_token_ids", "allowed_token_ids must not be empty");
  }
  if (const json::array* words = fields.Array("bad_words")) ReadBadWords(fields, *words, params);
  if (!HasTokenRules(*params)) return;
  const char* asked = params->bad_words.empty() ? "allowed_token_ids" : "bad_words";
  if (params->grammar) {
    fields.Fail(asked, fmt::format("{} cannot be held to beside {}: ask for one of them", asked,
                                   params->grammar->param));
  }
  for (const char* key : {"ignore_eos", "min_tokens"}) {
    const bool wanted =
        key == std::string_view("min_tokens") ? params->min_tokens > 0 : params->ignore_eos;
    if (wanted) fields.Fail(key, fmt::format("{} is not supported beside {}", key, asked));
  }
}

void ReadLogprobTokenIds(RequestFields& fields, const RequestLimits& limits,
                         GenerationParams* params) {
  constexpr const char* kKey = "logprob_token_ids";
  const json::array* ids = fields.Array(kKey);
  if (ids == nullptr) return;
  if (ids->empty() || ids->size() > kMaxLogprobTokenIds) {
    fields.Fail(kKey, fmt::format("{} has {} entries; it must have 1 to {}", kKey, ids->size(),
                                  kMaxLogprobTokenIds));
    return;
  }
  std::vector<TokenId>& named = params->sampling.logprob_token_ids;
  for (const TokenId id : ReadTokens(fields, kKey, *ids, limits.vocab_size)) {
    if (std::find(named.begin(), named.end(), id) == named.end()) named.push_back(id);
  }
  if (params->sampling.logprobs < 0) {
    fields.Fail(kKey, fmt::format("{} is only allowed with logprobs", kKey));
  }
  if (params->max_tokens == 0) {
    fields.Fail(kKey, fmt::format("{} is of generated tokens: max_tokens must not be 0", kKey));
  }
}

bool HasTokenRules(const GenerationParams& params) {
  return !params.allowed_token_ids.empty() || !params.bad_words.empty();
}

std::optional<ApiError> GrammarOfTokens(const GenerationParams& params, const Tokenizer& tokenizer,
                                        const std::vector<TokenId>& eos, int32_t vocab_size,
                                        std::shared_ptr<const Grammar>* grammar) {
  if (!HasTokenRules(params)) return std::nullopt;
  if (params.grammar) {
    const std::string asked = params.bad_words.empty() ? "allowed_token_ids" : "bad_words";
    return BadParameter(asked, asked +
                                   " cannot be held to beside calls of tools that are held to "
                                   "their form");
  }
  TokenRules rules{.allowed = params.allowed_token_ids};
  for (const std::string& word : params.bad_words) {
    for (const std::string& form : {word, " " + word}) {
      Result<std::vector<TokenId>> tokens = tokenizer.Encode(form, /*add_special_tokens=*/false);
      if (!tokens.ok()) return TextError(tokens.status(), "bad_words");
      if (!tokens->empty()) rules.banned.push_back(std::move(tokens).value());
    }
  }
  std::vector<TokenId> stop = params.stop_token_ids;
  stop.insert(stop.end(), eos.begin(), eos.end());
  *grammar = MakeTokenGrammar(std::move(rules), std::move(stop), vocab_size);
  return std::nullopt;
}

}  // namespace fathom
