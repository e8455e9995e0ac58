#include "grammar/ascii_schema.h"

#include <boost/json.hpp>

#include "grammar/pattern_syntax.h"

namespace fathom {
namespace {

namespace json = boost::json;

// Whether anything changed.
bool Rewrite(json::value& schema);

bool RewriteNames(json::object& patterns) {
  bool changed = false;
  json::object others;
  for (auto& [name, schema] : patterns) {
    const std::string ascii = AsciiPattern(name);
    changed |= ascii != std::string_view(name);
    others[ascii] = std::move(schema);
  }
  patterns = std::move(others);
  return changed;
}

bool RewriteAll(json::value& schemas) {
  bool changed = false;
  if (json::array* list = schemas.if_array()) {
    for (json::value& one : *list) changed |= Rewrite(one);
  } else if (json::object* named = schemas.if_object()) {
    for (auto& [name, one] : *named) changed |= Rewrite(one);
  }
  return changed;
}

bool Rewrite(json::value& value) {
  json::object* schema = value.if_object();
  if (schema == nullptr) return false;
  bool changed = false;
  json::value* pattern = schema->if_contains("pattern");
  if (pattern != nullptr && pattern->is_string()) {
    const std::string ascii = AsciiPattern(pattern->get_string());
    changed = ascii != std::string_view(pattern->get_string());
    *pattern = ascii;
  }
  for (auto& [key, part] : *schema) {
    // Values, in which nothing is a schema.
    if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;
    if (key == "patternProperties" && part.is_object()) changed |= RewriteNames(part.get_object());
    const bool of_schemas = part.is_array() || key == "properties" || key == "patternProperties" ||
                            key == "$defs" || key == "definitions";
    changed |= of_schemas ? RewriteAll(part) : Rewrite(part);
  }
  return changed;
}

}  // namespace

std::string WithAsciiPatterns(std::string_view text) {
  boost::system::error_code error;
  json::value root = json::parse(text, error, {}, {.max_depth = 1000});
  // As it was written, if it may stay so: numbers would be written otherwise.
  return !error && Rewrite(root) ? json::serialize(root) : std::string(text);
}

}  // namespace fathom
