// Regular expressions over UTF-8: PCRE2 with just-in-time compilation and match limits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/work_limits.h"

namespace fathom {

// Immutable. THREAD: any.
class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  // `pattern` in the syntax of Hugging Face tokenizers (Oniguruma, Ruby flavour). What would mean
  // something else to PCRE2 is translated, or refused by name (kUnimplemented).
  static Result<Regex> Compile(std::string_view pattern);

  // Walks the matches of one text after the other. Keeps what matching needs, so that a text costs
  // no allocation. THREAD: one. The regex and `limits` outlive it.
  class Search {
   public:
    explicit Search(const Regex& regex, const WorkLimits& limits = {});
    Search(Search&&) noexcept;
    ~Search();
    // REQUIRES: UTF-8; `text` outlives the search in it.
    void Begin(std::string_view text);
    // The next match; false at the end, and after an error. Left to right, without overlap; an
    // empty match right after a match is skipped. Look-arounds see the text only.
    bool Next(Match* match);
    // kResourceExhausted past the match limit, which holds for each place where a match may begin,
    // and what `limits` says.
    const Status& status() const;

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace fathom
