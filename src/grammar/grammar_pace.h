// What a token of an answer may take of a thread that others wait for.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "grammar/grammar.h"

namespace fathom {

// This thread's own work so far, whatever others take of its core.
int64_t ThreadNs();

// Of so many tokens, which have been at work since ThreadNs() was `begin_ns`. kInvalidArgument if
// that is more than other requests can bear once: 20 ms for each, some hundred times what one takes
// in forms that clients send (docs/structured-output.md).
Status CheckPace(int64_t begin_ns, int64_t tokens);

// The first tokens of an answer, drawn from what masks allow, for 0.1 s. kInvalidArgument for a
// grammar that nothing can begin, or that is too slow at one of them: no engine is held up to find
// that out. `vocab`: as in FillMask.
Status TryPace(const Grammar& grammar, int32_t vocab);

}  // namespace fathom
