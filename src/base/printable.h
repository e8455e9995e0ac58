// Text made fit for a terminal or a log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

// A name for a line: control characters, which could steer a terminal or forge a log line, become
// '?', as do bytes that are no UTF-8; what is longer than `max_bytes` is cut, and ends in "...".
std::string Printable(std::string_view name, size_t max_bytes = 200);

// A text of any length: line ends and tabs stay too.
std::string PrintableLines(std::string_view text);

// "1 request", "2 requests".
std::string Counted(int64_t count, std::string_view noun);

}  // namespace fathom
