// Schemas as the compiler takes their patterns.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// `text`, a schema or a structural tag that CheckGrammar() takes, with AsciiPattern() of each
// pattern in its schemas.
std::string WithAsciiPatterns(std::string_view text);

}  // namespace fathom
