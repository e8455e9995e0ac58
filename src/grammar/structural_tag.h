// Structural tags: text, schemas, patterns and grammars one after another, or between free text.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// A request's tag, as JSON: {"format": ...} of xgrammar's formats, but those of tokens, which are
// the server's; or vLLM's older {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
// What GrammarKind::kStructuralTag takes, or kInvalidArgument, naming the place.
Result<std::string> ReadStructuralTag(std::string_view text);

}  // namespace fathom
