// What a request says of its answer's form: OpenAI's response_format, vLLM's and SGLang's fields.
#pragma once

#include <optional>
#include <string>

#include "grammar/grammar_compiler.h"
#include "server/json_fields.h"

namespace fathom {

struct AskedGrammar {
  GrammarSpec spec;
  std::string param;  // where the request says it, for errors
};

// Nothing if the answer is free. What cannot be done is refused by name.
std::optional<AskedGrammar> ReadGrammar(RequestFields& fields);

}  // namespace fathom
