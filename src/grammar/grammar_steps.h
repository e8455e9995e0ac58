// The work of grammars' states, counted: where xgrammar loops over what a request may make many of,
// it is built with a line that counts (cmake/xgrammar.cmake). A step is a state of its parser that
// it makes or looks at, or as much other work; no machine and no neighbour changes their number.
#pragma once

#include <cstdint>

namespace fathom {

// Of this thread, until somebody has to look.
extern __thread int64_t steps_to_look;

// Throws what ends xgrammar's work, where it has done too much.
void LookAtSteps();

inline void CountSteps(int64_t steps = 1) {
  if ((steps_to_look -= steps) < 0) LookAtSteps();
}

}  // namespace fathom
