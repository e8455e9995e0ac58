// JSON that is only checked.
#pragma once

#include <string_view>

namespace fathom {

// Whether `text` is a JSON object, nested no deeper than a request may be. Makes nothing of it.
bool IsJsonObject(std::string_view text);

}  // namespace fathom
