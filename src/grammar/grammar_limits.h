// What of a request is refused before any compiler sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "grammar/grammar_compiler.h"
#include "grammar/pattern_syntax.h"

namespace fathom {

inline constexpr size_t kMaxSchemaBytes = size_t{128} << 10;
inline constexpr size_t kMaxPatternBytes = size_t{8} << 10;  // of a regular expression
inline constexpr size_t kMaxChoiceBytes = kMaxSchemaBytes;   // of all choices together
inline constexpr size_t kMaxEbnfBytes = size_t{64} << 10;
inline constexpr int kMaxSchemaDepth = 64;
inline constexpr int kMaxSchemaProperties = 2000;  // of all objects of a schema
// In a row, between two that are required: a token's time grows with the square of their number.
inline constexpr int kMaxOptionalProperties = 400;
inline constexpr int kMaxEnumEntries = 2000;     // of all enumerations of a schema
inline constexpr int64_t kMaxItems = 1000;       // that a schema may count in an array
inline constexpr int64_t kMaxLength = 10000;     // that it may count in a string
inline constexpr int64_t kMaxLengths = 100'000;  // of all strings of a schema: each is a state
inline constexpr int kMaxPatternDepth = 32;      // parentheses within parentheses
// Characters of a pattern, each as often as the counted repetitions around it ask for.
inline constexpr int64_t kMaxExpandedPattern = 10000;

// In a row, between the parts of JSON: enough for lines indented 15 levels deep. Without an end a
// model may fill its whole answer with it.
inline constexpr int kMaxWhitespace = 32;

// kInvalidArgument, naming the place, for what is too large, malformed, or of what a compiler would
// not hold an answer to.
Status CheckGrammar(const GrammarSpec& spec);

// Its parts. `where`: what to call it.
Status CheckSchema(std::string_view schema, bool strict);
Status CheckPattern(std::string_view pattern, std::string_view where);
// Of a string in a schema, of which an automaton is made whatever it takes: repetitions in counted
// repetitions are few; and its syntax.
Status CheckSchemaPattern(std::string_view pattern, std::string_view where,
                          PatternUse use = PatternUse::kJsonString);
// Whether the whole pattern is soon made an automaton of: the time grows with the square of the
// repetitions that a text may be in at once, of which there are `most_choices`.
bool IsSmallAutomaton(std::string_view pattern, int64_t most_choices = 20);
Status CheckEbnf(std::string_view grammar);
// What stands in it; `own`: of the server, so that its places say nothing to who asked.
Status CheckStructuralTag(std::string_view tag, bool own = false);

}  // namespace fathom
