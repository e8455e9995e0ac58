// What the files of a folder say about its tokenizer, checked and ready to use.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace fathom {

struct TokenizerParts {
  // Of tokenizer.json.
  Vocabulary vocabulary;
  std::vector<AddedToken> added;  // as listed
  std::optional<AddedTokens> added_tokens;
  PreTokenizer pre_tokenizer;
  std::optional<Bpe> bpe;
  // What add_special_tokens puts around a text.
  std::vector<TokenId> prefix, suffix;

  // Of tokenizer_config.json.
  std::string bos_token, eos_token;
  std::string chat_template;
};

// Reads tokenizer.json at `path`. Every component is either built or refused by name.
Status ReadTokenizerJson(const std::string& path, TokenizerParts* parts);

// Reads tokenizer_config.json and chat_template.jinja of `folder`, each if it is there, on top of
// what ReadTokenizerJson read. For the class LlamaTokenizerFast the flags add_bos_token and
// add_eos_token replace the post-processor of tokenizer.json, as in transformers 4, for which the
// DeepSeek folders were published.
Status ReadTokenizerConfig(const std::string& folder, TokenizerParts* parts);

}  // namespace fathom
