// Renders chat templates for differential tests. Reads one JSON object a line from stdin:
//   {"template": "...", "variables": {...}, "trusted_variables": {...}}
// and writes one a line: {"text": "...", "spans": [[end, trusted], ...]}, or {"error": "...",
// "code": "..."} with the stage ("parse" or "render") that failed.
#include <boost/json.hpp>
#include <iostream>
#include <string>

#include "chat/chat_template.h"

namespace {

namespace json = boost::json;

json::object ErrorOf(const fathom::Status& status, std::string_view stage) {
  return {{"error", status.message()}, {"code", fathom::Name(status.code())}, {"stage", stage}};
}

json::object ObjectAt(const json::object& line, std::string_view key) {
  const json::value* value = line.if_contains(key);
  return value == nullptr ? json::object() : value->as_object();
}

json::object Render(const json::object& line) {
  const auto parsed = fathom::ChatTemplate::Parse(line.at("template").as_string());
  if (!parsed.ok()) return ErrorOf(parsed.status(), "parse");
  const auto rendered =
      parsed->Render(ObjectAt(line, "variables"), ObjectAt(line, "trusted_variables"));
  if (!rendered.ok()) return ErrorOf(rendered.status(), "render");
  json::array spans;
  for (const auto& span : rendered->spans()) spans.push_back({span.end, span.trusted});
  return {{"text", rendered->text()}, {"spans", std::move(spans)}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    json::parse_options options;
    options.max_depth = 256;
    std::cout << json::serialize(Render(json::parse(line, {}, options).as_object())) << "\n";
  }
}
