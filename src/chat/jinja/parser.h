// Tokens to a program. The grammar is jinja2's, less what chat templates do not use.
#pragma once

#include <string_view>

#include "base/status.h"
#include "chat/jinja/ast.h"

namespace fathom::jinja {

// Errors: kInvalidArgument for bad syntax, kUnimplemented for what is outside the subset; both name
// the line.
Result<Program> ParseProgram(std::string_view source);

}  // namespace fathom::jinja
