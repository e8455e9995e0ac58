// Tokens of one output stream to text, piece by piece.
#pragma once

#include <string>

#include "base/ids.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// Never emits half a UTF-8 character; what Push and Finish return concatenates to Decode's result.
class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  std::string Push(TokenId id);  // the text that became final
  std::string Finish();          // what is left: an unfinished character becomes U+FFFD

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  // the beginning of a character, at most 3 bytes
};

}  // namespace fathom
