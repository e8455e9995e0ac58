// A template's source as tokens, its whitespace already trimmed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/jinja/value.h"

namespace fathom::jinja {

struct Token {
  enum class Kind {
    kData,
    kBlockBegin,
    kBlockEnd,
    kPrintBegin,
    kPrintEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  int line;
  std::string text;  // a string's contents, an operator, a name
  Int integer = 0;
  double number = 0;
};

// The last token is kEnd. trim_blocks and lstrip_blocks are on, and one line end at the end of the
// source is dropped. Errors name the line.
Result<std::vector<Token>> Tokenize(std::string_view source);

Status SyntaxError(int line, std::string_view what);

}  // namespace fathom::jinja
