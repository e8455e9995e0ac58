// Tokens that keep a text well-formed UTF-8: automata of characters take halves of characters
// (surrogates) and letters that are longer than need be, which no text has.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace fathom {

class Utf8Tokens {
 public:
  // What each token adds to a text.
  explicit Utf8Tokens(const std::vector<std::string>& tokens);

  // Whether `token` may stand behind a text that ends with the byte `last`.
  bool MayFollow(uint8_t last, TokenId token) const;
  // Clears the bits of those that may not.
  void Mask(uint8_t last, std::span<uint32_t> words) const;
  // The byte that a text ends with behind `token`; 0 for one that adds nothing.
  uint8_t Last(TokenId token) const;

 private:
  std::vector<uint8_t> first_, last_;    // bytes of each token
  std::vector<bool> broken_;             // within itself
  std::vector<TokenId> never_, within_;  // those, and what begins within a character
};

}  // namespace fathom
