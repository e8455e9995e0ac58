// What a token of an answer may take of a thread that others wait for.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

// Steps (grammar_steps.h) that a token may take of a vocabulary of so many.
int64_t MostSteps(int32_t vocab);

// While this lives, grammars' states on this thread fail with TooSlow() once they have taken so
// many steps.
class PaceLimit {
 public:
  explicit PaceLimit(int64_t steps);
  ~PaceLimit();
  PaceLimit(const PaceLimit&) = delete;

  int64_t taken() const;
  static Status Check();  // of this thread's

 private:
  const int64_t steps_;
};

// kInvalidArgument, of a grammar that takes more: other requests wait.
Status TooSlow();

// What may begin an answer. Tokens are drawn from the masks, some of an answer's first: a grammar
// that nothing can begin, or that is too slow at one of them, is kInvalidArgument, so that no
// engine is held up to find that out. `vocab`: as in FillMask.
Result<std::vector<uint32_t>> TryPace(const Grammar& grammar, int32_t vocab);

}  // namespace fathom
