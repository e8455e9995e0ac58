// Which tokens of an answer belong to its thinking.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "engine/messages.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

class ReasoningMeter {
 public:
  explicit ReasoningMeter(const Tokenizer& tokenizer)
      : think_(tokenizer.IdOf("<think>")), end_think_(tokenizer.IdOf("</think>")) {}

  // Of the text of some tokens: whether the parser was thinking before it, and behind each part of
  // it (PartsAtMarkers).
  void Begin(bool thinks) { before_ = within_ = after_ = thinks; }
  void Pass(bool thinks) {
    after_ = thinks;
    within_ = within_ || thinks;
  }
  // Counts those of the thinking, its markers included, and says which: [first, second). A piece
  // that begins or ends the thinking has the marker's token, unless text was held back or the
  // marker spelled: then it counts to the thinking from its beginning, or to its end.
  std::pair<size_t, size_t> End(const std::vector<GeneratedToken>& tokens);
  int64_t tokens() const { return tokens_; }

 private:
  std::optional<TokenId> think_, end_think_;
  bool before_ = false, within_ = false, after_ = false;
  int64_t tokens_ = 0;
};

}  // namespace fathom
