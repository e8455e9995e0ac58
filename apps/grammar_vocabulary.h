// A model's tokens as grammars see them.
#pragma once

#include "grammar/grammar_compiler.h"
#include "load_engine.h"

namespace fathom {

// REQUIRES: a tokenizer.
GrammarVocabulary VocabularyOf(const LoadedEngine& loaded);

}  // namespace fathom
