#include "tokenizer/test_tokenizer.h"

#include <fmt/format.h>

#include "tokenizer/byte_alphabet.h"

namespace fathom {

TokenizerFields::TokenizerFields() {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string letter = SpellByte(static_cast<uint8_t>(byte));
    vocab +=
        fmt::format(R"("{}{}": {}, )", letter == "\"" || letter == "\\" ? "\\" : "", letter, byte);
  }
  vocab = "{" + vocab + R"("ab": 256, "abc": 257, "bc": 258, "Ġab": 259, "aĠ": 260})";
  added_tokens = "[" + AddedTokenJson(261, "<s>") + "]";
}

std::string TokenizerFields::Json() const {
  return fmt::format(
      R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": {}, "normalizer": {},
"pre_tokenizer": {}, "post_processor": {}, "decoder": {},
"model": {{"type": {}, "vocab": {}, "merges": {}{}}}}})",
      added_tokens, normalizer, pre_tokenizer, post_processor, decoder, type, vocab, merges,
      more_of_model);
}

std::string AddedTokenJson(int id, std::string_view content, std::string_view flags) {
  return fmt::format(R"({{"id": {}, "content": "{}"{}}})", id, content,
                     flags.empty() ? R"(, "special": true)" : flags);
}

}  // namespace fathom
