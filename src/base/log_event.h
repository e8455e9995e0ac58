// Log lines for programs to read: with --log-format json each is a JSON object.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/log.h"

namespace fathom {

// "text" or "json"; false for any other name.
[[nodiscard]] bool SetLogFormat(std::string_view name);

struct LogField {
  std::string_view name;  // lower-case letters and _
  std::variant<int64_t, double, std::string> value;
};

// A line that says `text`; as JSON with `fields` beside "time", "level" and "message".
void LogEvent(LogLevel level, const std::string& text, std::span<const LogField> fields);

// A whole line that says `text`, in the format that is set, with its end.
std::string WholeLogLine(LogLevel level, const std::string& text);

}  // namespace fathom
