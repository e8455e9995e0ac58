// What xgrammar asks of us, as it is built here (cmake/xgrammar_mends.cmake).
// The work of grammars' states, counted: where xgrammar loops over what a request may make many of,
// it is built with a line that counts. A step is a state of its parser that
// it makes or looks at, or as much other work; no machine and no neighbour changes their number.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

// Of this thread, until somebody has to look.
extern __thread int64_t steps_to_look;

// Throws what ends xgrammar's work, where it has done too much.
void LookAtSteps();

inline void CountSteps(int64_t steps = 1) {
  if ((steps_to_look -= steps) < 0) LookAtSteps();
}

// Of the pattern of a macro in EBNF, which its quotes hide from CheckEbnf(); empty if there is
// none. `json_string`: it stands within a string of JSON.
std::string FaultOfMacro(const std::string& pattern, bool json_string);

}  // namespace fathom
