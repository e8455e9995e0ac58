// EBNF without recursion as a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom {

// What the rule "root" matches, as one regular expression: a compiler then knows of every token
// whether it fits, where a grammar of several rules must ask at each step what comes behind a rule.
// Nothing for what has none, or a long one: recursion, lookahead, macros.
std::optional<std::string> PatternOfEbnf(std::string_view grammar);

}  // namespace fathom
