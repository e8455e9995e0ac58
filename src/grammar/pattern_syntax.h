// Regular expressions as grammars here take them.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

enum class PatternUse {
  kText,        // of an answer
  kJsonString,  // of what stands between the quotes of a JSON string, where nothing is escaped
};

// kInvalidArgument, naming the place in the pattern and how to mend it, for what is malformed, what
// no grammar here holds an answer to, and what no JSON string can match. `where`: what to call the
// pattern, whose parentheses are few (CheckPattern).
Status CheckPatternSyntax(std::string_view pattern, std::string_view where, PatternUse use);

// The same in ASCII, which becomes an automaton inside JSON where other characters would not; \S
// and \W match what every dialect says they do.
std::string AsciiPattern(std::string_view pattern);

}  // namespace fathom
