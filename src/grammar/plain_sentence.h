// What a compiler of grammars says, for who asked.
#pragma once

#include <string>
#include <string_view>

#include "grammar/grammar_compiler.h"

namespace fathom {

// "the schema cannot be compiled: ...", without the compiler's own files, lines and checks. Lines
// and columns stay where they are those of the asked grammar.
std::string PlainSentence(GrammarKind kind, std::string_view message);

}  // namespace fathom
