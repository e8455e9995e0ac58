// Log lines, on stderr: LOG_INFO("loaded {} tensors in {:.1f} s", n, s). One line per event.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace fathom {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error" or "off"; false for any other name.
[[nodiscard]] bool SetLogLevel(std::string_view name);
void LogLine(LogLevel level, const std::string& text);

#define LOG_DEBUG(...) ::fathom::LogLine(::fathom::LogLevel::kDebug, ::fmt::format(__VA_ARGS__))
#define LOG_INFO(...) ::fathom::LogLine(::fathom::LogLevel::kInfo, ::fmt::format(__VA_ARGS__))
#define LOG_WARNING(...) ::fathom::LogLine(::fathom::LogLevel::kWarning, ::fmt::format(__VA_ARGS__))
#define LOG_ERROR(...) ::fathom::LogLine(::fathom::LogLevel::kError, ::fmt::format(__VA_ARGS__))

}  // namespace fathom
