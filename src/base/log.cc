#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <fmt/chrono.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "base/bounded_write.h"
#include "base/log_event.h"
#include "base/log_thread.h"
#include "base/printable.h"

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

constexpr char kTextPattern[] = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v";
std::atomic<bool> as_json{false};

spdlog::logger& Logger() {
  static const auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("fathom", std::make_shared<StderrSink>());
    made->set_pattern(kTextPattern);
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

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
    case LogLevel::kOff: return "off";
  }
  return "info";
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : PrintableLines(text)) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string Json(LogLevel level, std::string_view text, std::span<const LogField> fields) {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  std::string json = fmt::format(R"({{"time":"{:%Y-%m-%dT%H:%M:}{:%S}Z","level":"{}","message":{})",
                                 fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                                 now.time_since_epoch(), NameOf(level), Quoted(text));
  for (const LogField& field : fields) {
    json += fmt::format(",\"{}\":", field.name);
    if (const auto* whole = std::get_if<int64_t>(&field.value)) json += std::to_string(*whole);
    if (const auto* real = std::get_if<double>(&field.value)) json += fmt::format("{}", *real);
    if (const auto* words = std::get_if<std::string>(&field.value)) json += Quoted(*words);
  }
  return json + "}";
}

}  // namespace

bool SetLogFormat(std::string_view name) {
  if (name != "text" && name != "json") return false;
  as_json = name == "json";
  Logger().set_pattern(as_json ? "%v" : kTextPattern);
  return true;
}

std::string WholeLogLine(LogLevel level, const std::string& text) {
  return (as_json ? Json(level, text, {}) : text) + "\n";
}

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
  LogEvent(level, text, {});
}

void LogEvent(LogLevel level, const std::string& text, std::span<const LogField> fields) {
  if (!Logger().should_log(ToSpdlog(level))) return;
  Logger().log(ToSpdlog(level), "{}", as_json ? Json(level, text, fields) : text);
}

}  // namespace fathom
