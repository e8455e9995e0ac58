// For tests: a vocabulary of which each byte is a token, and whether a text is taken whole.
#pragma once

#include <string>
#include <string_view>

#include "grammar/xgrammar_adapter.h"

namespace fathom {

inline constexpr TokenId kByteEos{256};

inline GrammarVocabulary ByteVocabulary() {
  GrammarVocabulary vocabulary{.eos = {kByteEos}, .size = 257};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  vocabulary.tokens.emplace_back("<eos>");
  return vocabulary;
}

inline bool TakesBytes(const Grammar& grammar, std::string_view text) {
  const auto state = grammar.Start().value();
  for (const char c : text) {
    if (!state->Accept(TokenId{static_cast<unsigned char>(c)}).value()) return false;
  }
  return state->Accept(kByteEos).value();
}

}  // namespace fathom
