#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace fathom {
namespace {

spdlog::logger& Logger() {
  static const auto logger = [] {
    auto made = spdlog::stderr_color_mt("fathom");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

bool SetLogLevel(std::string_view name) {
  static constexpr std::pair<std::string_view, LogLevel> kNames[] = {
      {"debug", LogLevel::kDebug},
      {"info", LogLevel::kInfo},
      {"warning", LogLevel::kWarning},
      {"error", LogLevel::kError},
      {"off", LogLevel::kOff}};
  for (const auto& [known, level] : kNames) {
    if (known == name) {
      Logger().set_level(ToSpdlog(level));
      return true;
    }
  }
  return false;
}

void LogLine(LogLevel level, const std::string& text) {
  Logger().log(ToSpdlog(level), "{}", text);
}

}  // namespace fathom
