// Numbers in text, as Python's int() and float() read them.
#pragma once

#include <optional>
#include <string_view>

#include "chat/jinja/value.h"

namespace fathom::jinja {

// Nothing if the text is no number, or one that Int cannot hold. Surrounding whitespace and single
// underscores between digits are allowed. `base` 0 means by prefix.
std::optional<Int> ParseInt(std::string_view text, Int base);
std::optional<double> ParseFloat(std::string_view text);

}  // namespace fathom::jinja
