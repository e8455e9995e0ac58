#include "server/thinking_fields.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

namespace json = boost::json;

namespace {

// "thinking" in DeepSeek's templates and tiny-r1's, "enable_thinking" in others.
constexpr std::array<std::string_view, 2> kNames = {"thinking", "enable_thinking"};

const json::value* ThinkingOf(const json::object& variables) {
  for (const std::string_view name : kNames) {
    if (const json::value* given = variables.if_contains(name)) return given;
  }
  return nullptr;
}

// As in vLLM: all of them think but "none".
std::optional<bool> ReadEffort(RequestFields& fields, const char* key, json::object* variables) {
  static constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                               "high", "xhigh",   "max"};
  const std::string effort = fields.String(key, "");
  if (effort.empty()) return std::nullopt;
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    fields.Fail(key, fmt::format("{} must be \"none\", \"minimal\", \"low\", \"medium\", \"high\", "
                                 "\"xhigh\" or \"max\"",
                                 fields.Name(key)));
    return std::nullopt;
  }
  variables->emplace("reasoning_effort", effort);
  return effort != "none";
}

// DeepSeek's and Anthropic's {"type": "enabled"}.
std::optional<bool> ReadSwitch(RequestFields& fields) {
  const json::object* object = fields.Object("thinking");
  if (object == nullptr) return std::nullopt;
  RequestFields inner(*object, fields.error(), fields.Name("thinking"));
  const std::string type = inner.String("type", "");
  if (type == "disabled") return false;
  if (type == "enabled" || type == "adaptive") return true;
  inner.Fail("type", "thinking.type must be \"enabled\", \"adaptive\" or \"disabled\"");
  return std::nullopt;
}

std::optional<bool> ReadReasoning(RequestFields& fields, json::object* variables) {
  const json::object* object = fields.Object("reasoning");
  if (object == nullptr) return std::nullopt;
  RequestFields inner(*object, fields.error(), fields.Name("reasoning"));
  for (const auto& [key, value] : *object) {
    if (key != "effort" && key != "enabled" && key != "summary" && !value.is_null()) {
      inner.Fail(key, fmt::format("{} is not supported: reasoning takes effort and enabled",
                                  inner.Name(key)));
    }
  }
  const std::optional<bool> effort = ReadEffort(inner, "effort", variables);
  if (inner.Find("enabled") != nullptr) return inner.Bool("enabled", true);
  return effort;
}

}  // namespace

void ReadThinking(RequestFields& fields, const json::object* defaults, json::object* variables) {
  // All are read, so that what is wrong with one is said.
  std::optional<bool> named;
  if (fields.Find("enable_thinking") != nullptr) named = fields.Bool("enable_thinking", true);
  const std::optional<bool> given[] = {named, ReadSwitch(fields), ReadReasoning(fields, variables),
                                       ReadEffort(fields, "reasoning_effort", variables)};
  std::optional<json::value> thinking;
  if (const json::value* own = ThinkingOf(*variables)) thinking = *own;
  for (const std::optional<bool>& one : given) {
    if (!thinking && one) thinking = *one;
  }
  const json::value* otherwise = defaults != nullptr ? ThinkingOf(*defaults) : nullptr;
  if (!thinking && otherwise != nullptr) thinking = *otherwise;
  for (const std::string_view name : kNames) {
    if (thinking) variables->emplace(name, *thinking);
  }
  if (defaults == nullptr) return;
  for (const auto& [key, value] : *defaults) variables->emplace(key, value);
}

}  // namespace fathom
