// xgrammar behind our interface: what it throws becomes a Status, but for std::bad_alloc, and so
// does what it warns of.
#pragma once

#include <memory>

#include "base/status.h"
#include "grammar/grammar_compiler.h"

namespace fathom {

// REQUIRES: specs that CheckGrammar() lets pass.
GrammarCompiler::Compile MakeXgrammarCompile(GrammarVocabulary vocabulary);

}  // namespace fathom
