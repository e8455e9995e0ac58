#include "grammar/utf8_tokens.h"

#include <algorithm>

namespace fathom {
namespace {

// Of the second byte of a character of three or four, which alone can be out of its range.
bool IsPair(uint8_t first, uint8_t second) {
  if ((second & 0xc0) != 0x80) return true;
  if (first == 0xe0) return second >= 0xa0;
  if (first == 0xed) return second < 0xa0;
  if (first == 0xf0) return second >= 0x90;
  return first != 0xf4 || second < 0x90;
}

}  // namespace

Utf8Tokens::Utf8Tokens(const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    const auto pair = [](char a, char b) {
      return !IsPair(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
    };
    first_.push_back(token.empty() ? 0 : static_cast<uint8_t>(token.front()));
    last_.push_back(token.empty() ? 0 : static_cast<uint8_t>(token.back()));
    broken_.push_back(std::ranges::adjacent_find(token, pair) != token.end());
    const TokenId id{static_cast<int32_t>(first_.size()) - 1};
    if (broken_.back()) never_.push_back(id);
    if ((first_.back() & 0xc0) == 0x80) within_.push_back(id);
  }
}

bool Utf8Tokens::MayFollow(uint8_t last, TokenId token) const {
  const auto id = static_cast<size_t>(Raw(token));
  return id >= first_.size() || (!broken_[id] && IsPair(last, first_[id]));
}

void Utf8Tokens::Mask(uint8_t last, std::span<uint32_t> words) const {
  const auto clear = [&](TokenId token) {
    const auto id = static_cast<uint32_t>(Raw(token));
    words[id / 32] &= ~(1U << (id % 32));
  };
  for (const TokenId token : never_) clear(token);
  if (last != 0xe0 && last != 0xed && last != 0xf0 && last != 0xf4) return;  // see IsPair()
  for (const TokenId token : within_) {
    if (!MayFollow(last, token)) clear(token);
  }
}

uint8_t Utf8Tokens::Last(TokenId token) const {
  const auto id = static_cast<size_t>(Raw(token));
  return id < last_.size() ? last_[id] : 0;
}

}  // namespace fathom
