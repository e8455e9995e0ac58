#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "grammar/schema_keywords.h"

namespace fathom {
namespace {

namespace json = boost::json;

// Of a text that JSON writes in one way, unless it is made longer than it need be.
bool IsPlain(char c) {
  return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

// In an open object xgrammar takes such a name, written otherwise, for one of the others.
Status CheckOpenName(std::string_view name, const char* key, const std::string& at) {
  if (std::ranges::all_of(name, [](char c) { return IsPlain(c); })) return {};
  return InvalidArgument(
      "{}/{}: {} can be written in several ways: say additionalProperties: false beside it", at,
      key, json::serialize(json::value(name)));
}

// Names that `properties` lacks are those of any others.
Status CheckRequired(const json::array& names, const json::object& schema, bool closed,
                     const std::string& at) {
  const json::value* properties = schema.if_contains("properties");
  const json::value* others = schema.if_contains("additionalProperties");
  for (const json::value& name : names) {
    if (!name.is_string()) return InvalidArgument("{}/required must be a list of names", at);
    const std::string_view text = name.get_string();
    if (properties != nullptr && properties->get_object().contains(text)) continue;
    for (const char* key : {"patternProperties", "propertyNames"}) {
      if (!schema.contains(key)) continue;
      return InvalidArgument("{}/required: answers cannot be held to {} beside {}", at,
                             json::serialize(name), key);
    }
    if (others != nullptr && *others == json::value(false)) {
      return InvalidArgument(
          "{}/required: {} is not among the properties, and additionalProperties forbids it", at,
          json::serialize(name));
    }
    if (!closed) TRY(CheckOpenName(text, "required", at));
  }
  return {};
}

}  // namespace

Status CheckProperties(const json::object& schema, bool strict, const std::string& at) {
  const json::value* given = schema.if_contains("properties");
  const json::object* properties = given != nullptr ? given->if_object() : nullptr;
  const json::value* required = schema.if_contains("required");
  const json::array* names = required != nullptr ? required->if_array() : nullptr;
  if (required != nullptr && names == nullptr) {
    return InvalidArgument("{}/required must be a list of names", at);
  }
  const json::value* others = schema.if_contains("additionalProperties");
  const bool closed = others != nullptr ? *others == json::value(false) : strict;
  if (names != nullptr) TRY(CheckRequired(*names, schema, closed, at));
  if (!closed && properties != nullptr) {
    for (const auto& member : *properties) TRY(CheckOpenName(member.key(), "properties", at));
  }
  for (const char* key : {"patternProperties", "propertyNames"}) {
    if (schema.contains(key) && properties != nullptr) {
      return InvalidArgument("{}: answers cannot be held to {} beside properties", at, key);
    }
  }
  if (const json::value* patterns = schema.if_contains("patternProperties")) {
    if (patterns->get_object().size() > 1 || !closed) {
      return InvalidArgument(
          "{}: answers can be held to one of patternProperties, with additionalProperties: false",
          at);
    }
  }
  if (const json::value* all = schema.if_contains("propertyNames")) {
    TRY(CheckNames(*all, at + "/propertyNames"));
  }
  const json::value* most = schema.if_contains("maxProperties");
  if (most != nullptr && names != nullptr && most->get_int64() < std::ssize(*names)) {
    return InvalidArgument("{}/maxProperties is below the number of required properties", at);
  }
  const json::value* least = schema.if_contains("minProperties");
  if (least != nullptr && *least->if_int64() > static_cast<int64_t>(names ? names->size() : 0)) {
    return InvalidArgument("{}/minProperties: name as many properties in required", at);
  }
  return {};
}

const json::value* SchemaAt(const json::value& root, std::string_view uri) {
  if (uri == "#") return &root;
  if (!uri.starts_with("#/") || uri.find_first_of("~%") != uri.npos || uri.ends_with('/')) {
    return nullptr;
  }
  const json::value* at = &root;
  for (uri.remove_prefix(2); at != nullptr && !uri.empty();) {
    const size_t end = std::min(uri.find('/'), uri.size());
    const json::object* object = at->if_object();
    at = object != nullptr ? object->if_contains(uri.substr(0, end)) : nullptr;
    uri.remove_prefix(std::min(end + 1, uri.size()));
  }
  return at != nullptr && (at->is_object() || at->is_bool()) ? at : nullptr;
}

}  // namespace fathom
