#include "server/text_stream.h"

#include <algorithm>

namespace fathom {

TextStream::TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      detokenizer_(tokenizer, /*skip_special_tokens=*/false),
      matcher_(options.stop) {}

bool TextStream::Skipped(TokenId id) const {
  const auto& kept = options_.kept_special;
  return options_.skip_special_tokens && tokenizer_.IsSpecial(id) &&
         std::find(kept.begin(), kept.end(), id) == kept.end();
}

std::string TextStream::Push(TokenId id) {
  ++tokens_;
  if (Skipped(id)) return {};
  const std::string text = detokenizer_.Push(id);
  return tokens_ <= options_.min_tokens ? text : matcher_.Push(text, options_.include_stop);
}

std::string TextStream::PushStopToken(TokenId id) {
  ++tokens_;
  if (!options_.include_stop || Skipped(id)) return {};
  return matcher_.Flush() + detokenizer_.Push(id);
}

std::string TextStream::Finish() {
  if (matcher_.matched()) return {};
  std::string text = matcher_.Push(detokenizer_.Finish(), options_.include_stop);
  return matcher_.matched() ? text : text + matcher_.Flush();
}

}  // namespace fathom
