#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <mutex>

#include "base/bounded_write.h"
#include "base/log_thread.h"

namespace fathom {
namespace {

constexpr std::string_view kPlain = "\033[m";

std::string_view ColorOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug: return "\033[36m";
    case spdlog::level::info: return "\033[32m";
    case spdlog::level::warn: return "\033[33m\033[1m";
    default: return "\033[31m\033[1m";
  }
}

// To stderr: by the LogThread if there is one, otherwise at once.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (colored_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, kPlain);
      line.insert(message.color_range_start, ColorOf(message.level));
    }
    if (QueueLogLine(line)) return;
    WriteUntil(STDERR_FILENO, line, std::chrono::steady_clock::now() + kPatience);
  }
  void flush_() override {}

  static constexpr std::chrono::seconds kPatience{10};
  const bool colored_ = isatty(STDERR_FILENO) == 1;
};

spdlog::logger& Logger() {
  static const auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("fathom", std::make_shared<StderrSink>());
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
