#include "tokenizer/vocabulary.h"

#include "base/check.h"
#include "tokenizer/byte_alphabet.h"

namespace fathom {

bool Vocabulary::Add(std::string_view spelling, TokenId id, bool of_model) {
  CHECK(Raw(id) >= 0, "token id {}", Raw(id));
  if ((*this)[id].exists || ids_.contains(spelling)) return false;
  if (Raw(id) >= size()) tokens_.resize(Raw(id) + 1);
  ids_.emplace(spelling, id);
  TokenInfo& token = tokens_[Raw(id)];
  // The ByteLevel decoder reads every token this way, added ones too.
  std::optional<std::string> bytes = BytesOfSpelling(spelling);
  token.byte_level = of_model && bytes.has_value();
  token.bytes = bytes ? *std::move(bytes) : std::string(spelling);
  token.exists = true;
  return true;
}

void Vocabulary::MarkAdded(TokenId id, bool special) {
  CHECK((*this)[id].exists, "token id {}", Raw(id));
  tokens_[Raw(id)].added = true;
  tokens_[Raw(id)].special = special;
}

std::optional<TokenId> Vocabulary::Find(std::string_view spelling) const {
  const auto found = ids_.find(spelling);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const TokenInfo& Vocabulary::operator[](TokenId id) const {
  static const TokenInfo kNone;
  return Raw(id) >= 0 && Raw(id) < size() ? tokens_[Raw(id)] : kNone;
}

}  // namespace fathom
