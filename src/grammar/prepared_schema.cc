#include "grammar/prepared_schema.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "grammar/ebnf_pattern.h"
#include "grammar/grammar_limits.h"
#include "grammar/pattern_syntax.h"
#include "grammar/schema_keywords.h"

namespace fathom {
namespace {

namespace json = boost::json;

bool IsAnyOf(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

class Preparer {
 public:
  explicit Preparer(bool strict) : strict_(strict) {}

  bool changed() const { return changed_; }

  void Prepare(json::value& value) {
    json::object* schema = value.if_object();
    if (schema == nullptr) return;
    json::value* pattern = schema->if_contains("pattern");
    if (pattern != nullptr && pattern->is_string()) {
      const std::string ascii = AsciiPattern(pattern->get_string());
      changed_ |= ascii != std::string_view(pattern->get_string());
      *pattern = ascii;
      MakeAutomaton(*schema, ascii);
    }
    NameRequired(*schema);
    if (strict_) Close(*schema);
    if (schema->contains("oneOf") && !schema->contains("anyOf")) {
      changed_ = true;
      json::value branches = std::move(schema->at("oneOf"));
      schema->erase("oneOf");
      schema->emplace("anyOf", std::move(branches));
    }
    for (auto& [key, part] : *schema) {
      // Values, in which nothing is a schema.
      if (IsAnyOf(key, {"const", "enum", "default", "examples"})) continue;
      // Which lets any others be.
      if (key == "additionalProperties" && part.is_object() && IsAnything(part.get_object()))
        continue;
      if (key == "patternProperties" && part.is_object()) PrepareNames(part.get_object());
      const bool of_schemas = part.is_array() || IsAnyOf(key, {"properties", "patternProperties",
                                                               "$defs", "definitions"});
      of_schemas ? PrepareAll(part) : Prepare(part);
    }
  }

 private:
  // A pattern in a structural tag is rules for xgrammar, where a macro is an automaton.
  void MakeAutomaton(json::object& format, const std::string& pattern) {
    const json::value* type = format.if_contains("type");
    if (type == nullptr || *type != "regex" || !IsSmallAutomaton(pattern)) return;
    format = {{"type", "grammar"}, {"grammar", "root ::= " + PatternInEbnf(pattern)}};
    changed_ = true;
  }

  void PrepareNames(json::object& patterns) {
    json::object others;
    for (auto& [name, schema] : patterns) {
      const std::string ascii = AsciiPattern(name);
      changed_ |= ascii != std::string_view(name);
      others[ascii] = std::move(schema);
    }
    patterns = std::move(others);
  }

  void PrepareAll(json::value& schemas) {
    if (json::array* list = schemas.if_array()) {
      for (json::value& one : *list) Prepare(one);
    } else if (json::object* named = schemas.if_object()) {
      for (auto& [name, one] : *named) Prepare(one);
    }
  }

  void NameRequired(json::object& schema) {
    const json::value* required = schema.if_contains("required");
    if (required == nullptr || !required->is_array()) return;
    json::value others = strict_ ? json::value(json::object()) : json::value(true);
    if (const json::value* given = schema.if_contains("additionalProperties")) others = *given;
    json::value properties = json::object();
    if (const json::value* given = schema.if_contains("properties")) properties = *given;
    json::object* named = properties.if_object();
    if (named == nullptr) return;
    const size_t before = named->size();
    for (const json::value& name : required->get_array()) {
      if (name.is_string()) named->emplace(name.get_string(), others);
    }
    if (named->size() == before) return;
    changed_ = true;
    schema["properties"] = std::move(properties);
  }

  // Whether no keyword says anything of a value.
  static bool IsAnything(const json::object& schema) {
    return std::ranges::none_of(schema, [](const auto& member) {
      return IsAnyOf(member.key(), {"type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf",
                                    "properties", "additionalProperties", "unevaluatedProperties",
                                    "items", "prefixItems", "unevaluatedItems"});
    });
  }

  void Close(json::object& schema) {
    if (IsAnything(schema)) {
      schema["type"] = {"object", "array", "string", "number", "boolean", "null"};
    }
    const auto close = [&](std::string_view type, const char* key,
                           std::initializer_list<std::string_view> open) {
      if (!HasType(schema, type) || schema.contains(key)) return;
      if (std::ranges::any_of(open, [&](std::string_view o) { return schema.contains(o); })) return;
      schema[key] = false;
      changed_ = true;
    };
    close("object", "additionalProperties", {"propertyNames", "unevaluatedProperties"});
    close("array", "items", {"unevaluatedItems"});
  }

  const bool strict_;
  bool changed_ = false;
};

}  // namespace

std::string PreparedSchema(std::string_view text, bool strict) {
  boost::system::error_code error;
  json::value root = json::parse(text, error, {}, {.max_depth = 1000});
  if (error) return std::string(text);
  Preparer preparer(strict);
  preparer.Prepare(root);
  // As it was written, if it may stay so: numbers would be written otherwise.
  return preparer.changed() ? json::serialize(root) : std::string(text);
}

}  // namespace fathom
