// What both sides are asked: a set of its own, or the lines of a file.
#pragma once

#include <boost/json/array.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "load_engine.h"

namespace fathom {

struct ComparePrompt {
  std::string name;             // "palindrome", or "line 3"
  boost::json::array messages;  // of a chat; empty: `text`, or tokens as the file has them
  std::string text;
  std::vector<TokenId> tokens;  // what is sent
};

struct ComparePrompts {
  std::vector<ComparePrompt> prompts;
  std::vector<std::string> left_out;  // of its own set: too long for the model's context
};

// `path` empty: its own set. Each has room for `max_tokens` more; a line of a file that has not, or
// is no prompt, is an error that names it.
Result<ComparePrompts> MakePrompts(const std::string& path, const LoadedEngine& loaded,
                                   int32_t max_tokens);

// Text as it is, with the model's first token.
Result<std::vector<TokenId>> EncodeText(const LoadedEngine& loaded, const std::string& text);

}  // namespace fathom
