// The tokens of one choice to the text that a user sees: detokenised, cut at stop strings.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "server/stop_strings.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

struct TextStreamOptions {
  bool skip_special_tokens = true;
  std::vector<TokenId> kept_special;  // shown all the same: the markers that a parser reads
  bool include_stop = false;          // stop strings and the text of stop tokens
  int32_t min_tokens = 0;             // stop strings that end sooner do not count
  std::shared_ptr<const StopStrings> stop;
};

class TextStream {
 public:
  // `tokenizer` and `options` must outlive this.
  TextStream(const Tokenizer& tokenizer, const TextStreamOptions& options);

  // The text that `id` makes final. REQUIRES: !stopped().
  std::string Push(TokenId id);
  // The text of the stop token that ended the choice: none unless stops are included.
  std::string PushStopToken(TokenId id);
  // What was held back, at the end of the tokens.
  std::string Finish();
  // The stop string that was met; no more text comes after it.
  const std::optional<std::string>& stopped() const { return matcher_.matched(); }

 private:
  bool Skipped(TokenId id) const;

  const Tokenizer& tokenizer_;
  const TextStreamOptions& options_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  int32_t tokens_ = 0;
};

}  // namespace fathom
