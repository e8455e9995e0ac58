// What a token of an answer may take of a thread that others wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

// What one answer may take, in steps (grammar_steps.h): so many for each of its tokens, and what it
// has in reserve, which is full at first and fills again with what tokens leave.
class AnswerPace {
 public:
  explicit AnswerPace(int32_t vocab);  // of so many tokens: costly masks ask about all of them

  int64_t each() const { return each_; }
  int64_t May(int64_t tokens) const { return tokens * each_ + reserve_; }
  void Took(int64_t tokens, int64_t steps);

 private:
  int64_t each_, most_reserve_;
  int64_t reserve_ = most_reserve_;
};

// While this lives, grammars' states on this thread fail once they have taken so many steps, or so
// much more memory than before.
class PaceLimit {
 public:
  explicit PaceLimit(int64_t steps, size_t bytes = kMostAnswerBytes);
  ~PaceLimit();
  PaceLimit(const PaceLimit&) = delete;

  int64_t taken() const;
  // kInvalidArgument once this thread's has been passed.
  static Status Check();

 private:
  Status Look();

  const int64_t steps_;
  const size_t bytes_;
  const int64_t end_bytes_;
  int64_t left_;  // beyond steps_to_look
  bool too_large_ = false;
};

// Of an answer's next token, where there is none (kNotFound of FillMask).
Status NothingMayFollow();

// What may begin an answer. Tokens are drawn from the masks, some of an answer's first: a grammar
// that nothing can begin, or that is too slow at one of them, is kInvalidArgument, so that no
// engine is held up to find that out. `vocab`: as in FillMask.
Result<std::vector<uint32_t>> TryPace(const Grammar& grammar, int32_t vocab);

}  // namespace fathom
