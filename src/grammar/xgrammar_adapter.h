// xgrammar behind our interface: what it throws becomes a Status, and so does what it warns of.
#pragma once

#include <memory>

#include "base/status.h"
#include "grammar/grammar_compiler.h"

namespace fathom {

// `vocabulary` is read while the compiler is made. REQUIRES: specs that CheckGrammar() lets pass.
GrammarCompiler::Compile MakeXgrammarCompile(const GrammarVocabulary& vocabulary);

}  // namespace fathom
