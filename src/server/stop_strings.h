// Finds stop strings in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// The strings of one request, prepared. Immutable. THREAD: any.
class StopStrings {
 public:
  // REQUIRES: no string is empty.
  explicit StopStrings(std::vector<std::string> strings);

 private:
  friend class StopMatcher;
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // of text[0..i]: its longest proper prefix that is also a suffix
  };
  std::vector<Pattern> patterns_;
};

// Of one choice. What it finds does not depend on how the text is cut: the match that ends first,
// of those the longest. Linear in text times strings (Knuth, Morris, Pratt).
class StopMatcher {
 public:
  // `strings` may be null: nothing matches.
  explicit StopMatcher(std::shared_ptr<const StopStrings> strings);

  // Takes the next text and returns what can no longer become part of a match. After a match,
  // that is what stands before it, and with `include_match` the match too; the rest is dropped.
  // REQUIRES: nothing has matched yet.
  std::string Push(std::string_view text, bool include_match);
  // Forgets what could have become a match and returns it.
  std::string Flush();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  const std::shared_ptr<const StopStrings> strings_;
  std::vector<size_t> progress_;  // per pattern: how much of it the text ends with
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace fathom
