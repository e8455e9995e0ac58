#include "tokenizer/detokenizer.h"

#include "tokenizer/utf8.h"

namespace fathom {

std::string Detokenizer::Push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_.IsSpecial(id)) return {};
  pending_ += tokenizer_.TokenBytes(id);
  std::string text;
  pending_.erase(0, AppendReplacingInvalid(pending_, &text));
  return text;
}

std::string Detokenizer::Finish() {
  std::string text(pending_.empty() ? "" : kReplacementCharacter);
  pending_.clear();
  return text;
}

}  // namespace fathom
