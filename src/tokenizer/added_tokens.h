// Tokens that are matched in the text itself, before it is cut into words.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/spanned_text.h"
#include "base/status.h"
#include "tokenizer/regex.h"

namespace fathom {

// An entry of added_tokens, with Hugging Face's names.
struct AddedToken {
  TokenId id;
  std::string content;
  bool special = false;
  bool single_word = false;  // not next to a letter, mark, digit or connector
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // ... and after it
  bool normalized = false;   // matched after the others, in what they leave
};

// Immutable. THREAD: any.
class AddedTokens {
 public:
  struct Piece {
    std::string_view text;
    std::optional<TokenId> id;  // none: ordinary text
    bool trusted = true;        // all of it
  };

  // REQUIRES: contents are UTF-8, not empty, and differ from each other.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Gives `text` to `take` as pieces: leftmost, longest matches of tokens, and what is between
  // them. With `trust`, only text that is trusted throughout matches. The first error of `take`.
  using Take = std::function<Status(const Piece&)>;
  Status Split(std::string_view text, const std::vector<SpannedText::Span>* trust,
               const Take& take) const;

 private:
  // The tokens of one pass, ordered by content.
  struct Pass {
    std::vector<AddedToken> tokens;
    std::array<int32_t, 257> first{};  // tokens [first[b], first[b + 1]) begin with byte b
    const AddedToken* LongestAt(std::string_view text) const;
  };
  static Pass MakePass(std::vector<AddedToken> tokens);
  static Status SplitPiece(const Pass& pass, std::string_view text, std::string_view whole,
                           const std::vector<SpannedText::Span>* trust, const Take& take);

  Pass raw_, normalized_;
};

}  // namespace fathom
