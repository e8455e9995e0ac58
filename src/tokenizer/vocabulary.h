// Every token of a tokenizer, by id and by spelling.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace fathom {

struct TokenInfo {
  std::string bytes;        // what the token adds to a decoded text
  bool exists = false;      // ids may have gaps
  bool byte_level = false;  // of the BPE model, and spelled in the byte alphabet: BPE can yield it
  bool added = false;       // listed in added_tokens
  bool special = false;     // ... and marked special
};

class Vocabulary {
 public:
  // `of_model`: a token of the BPE model, not one of added_tokens alone. False if the spelling or
  // the id is taken. REQUIRES: `id` is not negative; `spelling` is UTF-8.
  [[nodiscard]] bool Add(std::string_view spelling, TokenId id, bool of_model);
  // Marks an existing token as added.
  void MarkAdded(TokenId id, bool special);

  std::optional<TokenId> Find(std::string_view spelling) const;
  // A token without bytes for ids that do not exist.
  const TokenInfo& operator[](TokenId id) const;
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // highest id + 1

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::vector<TokenInfo> tokens_;
  std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_;
};

}  // namespace fathom
