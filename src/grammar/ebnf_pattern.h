// What of EBNF is a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom {

// What the rule "root" matches, as one regular expression: a compiler then knows of every token
// whether it fits, where a grammar of several rules must ask at each step what comes behind a rule.
// Nothing for what has none, or a long one: recursion, macros. Before each rule somebody looks
// (grammar_steps.h), here and below.
std::optional<std::string> PatternOfEbnf(std::string_view grammar);

// The same grammar, in which each rule without recursion that one with recursion names is a
// pattern. Nothing where there is none, or what PatternOfEbnf() does not know.
std::optional<std::string> EbnfWithPatterns(std::string_view grammar);

// The pattern, as it stands in EBNF: xgrammar's macro.
std::string PatternInEbnf(std::string_view pattern);

}  // namespace fathom
