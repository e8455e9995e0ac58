// What a token of an answer may take of a thread that others wait for.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

// This thread's own work so far, whatever others take of its core.
int64_t ThreadNs();

// What a step's tokens of one request may take: 20 ms for each of its longest row, some hundred
// times what one takes in forms that clients send (docs/structured-output.md), and 5 ms for each of
// the other rows that one thread has.
int64_t PaceNs(int64_t longest, int64_t others);

// What all tokens of a request may take beyond that: a thread's time has in it what a machine that
// is shared takes for others, now and then.
inline constexpr int64_t kSparePaceNs = 100'000'000;

// kInvalidArgument, of a grammar that takes longer: other requests wait.
Status TooSlow();

// While this lives, grammars' states fail with TooSlow() soon after this thread has been at work
// for so long.
class PaceLimit {
 public:
  explicit PaceLimit(int64_t ns);
  ~PaceLimit();
  PaceLimit(const PaceLimit&) = delete;

  static Status Check();  // of this thread's
};

// The first tokens of an answer, drawn from what masks allow, for 0.1 s. kInvalidArgument for a
// grammar that nothing can begin, or that is too slow at one of them, twice: no engine is held up
// to find that out. `vocab`: as in FillMask.
Status TryPace(const Grammar& grammar, int32_t vocab);

}  // namespace fathom
