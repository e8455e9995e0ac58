// Cuts text into the words that BPE works on.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/regex.h"

namespace fathom {

// What becomes of the matches of a Split. Names of Hugging Face.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A sequence of steps, each applied to every piece that the step before left. THREAD: any.
class PreTokenizer {
 public:
  struct Words {
    std::vector<std::string_view> pieces;  // into the text or into `prefixed`
    std::deque<std::string> prefixed;      // pieces that were given a leading space
  };

  // `inverted`: what lies between the matches counts as matched.
  void AddSplit(Regex regex, SplitBehavior behavior, bool inverted);
  // Pieces that do not begin with a space get one.
  void AddPrefixSpace() { steps_.push_back({std::nullopt, SplitBehavior::kIsolated, false}); }

  // The words of `text`, in order, none empty. REQUIRES: UTF-8; `text` outlives `words`.
  Status Split(std::string_view text, Words* words, const WorkLimits& limits = {}) const;

 private:
  struct Step {
    std::optional<Regex> regex;  // none: the prefix space
    SplitBehavior behavior;
    bool inverted;
  };
  std::vector<Step> steps_;
};

}  // namespace fathom
