// What a token of an answer may take of a thread that others wait for.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

// This thread's own work so far, whatever others take of its core.
int64_t ThreadNs();

// What all tokens of an answer may take beyond their own time: a thread's time has in it what a
// machine that is shared takes for others, now and then.
inline constexpr int64_t kSparePaceNs = 100'000'000;

// Of so many tokens, which have been at work since ThreadNs() was `begin_ns`. What they took beyond
// 20 ms for each, some hundred times what one takes in forms that clients send
// (docs/structured-output.md), is taken off `*spare_ns`. kInvalidArgument once that is below zero:
// other requests wait.
Status CheckPace(int64_t begin_ns, int64_t tokens, int64_t* spare_ns);

// The first tokens of an answer, drawn from what masks allow, for 0.1 s. kInvalidArgument for a
// grammar that nothing can begin, or that is too slow at one of them, twice: no engine is held up
// to find that out. `vocab`: as in FillMask.
Status TryPace(const Grammar& grammar, int32_t vocab);

}  // namespace fathom
