// Regular expressions over UTF-8: PCRE2 with just-in-time compilation and match limits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

  // All matches, left to right, without overlap; an empty match right after a match is skipped.
  // Look-arounds see `text` only. kResourceExhausted past the match limit, which holds for each
  // place where a match may begin, and what `limits` says. REQUIRES: UTF-8.
  Status FindAll(std::string_view text, std::vector<Match>* matches,
                 const WorkLimits& limits = {}) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace fathom
