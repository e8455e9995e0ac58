// What a token of an answer may take of a thread that others wait for.
#pragma once

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

// While this lives, grammars' states on this thread fail once they have taken so many steps.
class PaceLimit {
 public:
  explicit PaceLimit(int64_t steps);
  ~PaceLimit();
  PaceLimit(const PaceLimit&) = delete;

  int64_t taken() const;
  // kInvalidArgument once this thread's has been passed.
  static Status Check();

 private:
  const int64_t steps_;
};

// What may begin an answer. Tokens are drawn from the masks, some of an answer's first: a grammar
// that nothing can begin, or that is too slow at one of them, is kInvalidArgument, so that no
// engine is held up to find that out. `vocab`: as in FillMask.
Result<std::vector<uint32_t>> TryPace(const Grammar& grammar, int32_t vocab);

}  // namespace fathom
