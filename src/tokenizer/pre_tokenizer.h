// Cuts text into the words that BPE works on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/work_limits.h"
#include "tokenizer/regex.h"

namespace fathom {

// What becomes of the matches of a Split. Names of Hugging Face.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A sequence of steps, each applied to every piece that the step before left. THREAD: any.
class PreTokenizer {
 public:
  class Words;

  // `inverted`: what lies between the matches counts as matched.
  void AddSplit(Regex regex, SplitBehavior behavior, bool inverted);
  // Pieces that do not begin with a space get one.
  void AddPrefixSpace() { steps_.push_back({std::nullopt, SplitBehavior::kIsolated, false}); }

 private:
  struct Step {
    std::optional<Regex> regex;  // none: the prefix space
    SplitBehavior behavior;
    bool inverted;
  };
  std::vector<Step> steps_;
};

// Walks the words of one text after the other. Each step cuts a piece only as far as its next part,
// so that no list of a text's words or matches is ever made. THREAD: one.
class PreTokenizer::Words {
 public:
  // REQUIRES: `pre_tokenizer` and what `limits` points to outlive this.
  explicit Words(const PreTokenizer& pre_tokenizer, const WorkLimits& limits = {});
  ~Words();
  Words(const Words&) = delete;
  // REQUIRES: UTF-8; `text` outlives the walk of it.
  void Begin(std::string_view text);
  // The next word, in order, never empty, which lasts until the next call; false at the end, and
  // after an error.
  bool Next(std::string_view* word);
  const Status& status() const { return status_; }  // as Regex::Search's, or of `limits`

 private:
  class Cutter;
  const WorkLimits limits_;
  std::vector<Cutter> cutters_;  // one a step
  size_t depth_ = 0;             // so many of them have a piece
  std::string_view text_;        // without steps: itself, if not empty
  Status status_;
};

}  // namespace fathom
