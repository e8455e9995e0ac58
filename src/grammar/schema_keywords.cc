#include "grammar/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

namespace fathom {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                    "null",   "object", "array"};
// The formats that xgrammar holds strings to.
constexpr std::array<std::string_view, 14> kFormats = {"email",        "date",
                                                       "time",         "date-time",
                                                       "duration",     "ipv4",
                                                       "ipv6",         "uuid",
                                                       "uri",          "uri-template",
                                                       "hostname",     "uri-reference",
                                                       "json-pointer", "relative-json-pointer"};
constexpr int64_t kMostMultiple = 1024, kMostNumbers = 10000;
constexpr double kEndOfIntegers = 0x1p63;

// A bound of integers, its own value left out if it is exclusive.
struct Bound {
  std::string_view key;
  int64_t value;
};

// `key` of `schema` as an integer; `up`: the way to mend one that is none.
Result<std::optional<int64_t>> WholeBound(const json::object& schema, std::string_view key, bool up,
                                          const std::string& at) {
  const json::value* given = schema.if_contains(key);
  if (given == nullptr) return std::optional<int64_t>();
  if (const int64_t* whole = given->if_int64()) return std::optional(*whole);
  const auto value = given->to_number<double>();
  if (value < -kEndOfIntegers || value >= kEndOfIntegers) {
    return InvalidArgument(
        "{}/{} is beyond the integers that can be held to, of 64 bits; leave it out", at, key);
  }
  if (value != std::floor(value)) {
    return InvalidArgument("{}/{}: integers need a whole number: write {:.0f}", at, key,
                           up ? std::ceil(value) : std::floor(value));
  }
  return std::optional(static_cast<int64_t>(value));
}

Status NoNumber(const std::string& at, std::string_view low, std::string_view high) {
  return InvalidArgument("{}: {} and {} leave no number between them", at, low, high);
}

Status CheckMultiple(const json::object& schema, const Bound* low, const Bound* high,
                     const std::string& at) {
  const json::value* given = schema.if_contains("multipleOf");
  if (given == nullptr) return {};
  const auto value = given->to_number<double>();
  if (value != std::floor(value) || value > static_cast<double>(kMostMultiple)) {
    return InvalidArgument("{}/multipleOf: answers can be held to whole numbers up to {}", at,
                           kMostMultiple);
  }
  if (low == nullptr && high == nullptr) return {};
  const bool few = low != nullptr && high != nullptr &&
                   static_cast<uint64_t>(high->value) - static_cast<uint64_t>(low->value) <
                       static_cast<uint64_t>(kMostNumbers);
  if (!few) {
    return InvalidArgument(
        "{}/multipleOf: beside bounds answers can be held to it where these are two, with at most "
        "{} integers between them",
        at, kMostNumbers);
  }
  // The number before the end, as there may be none behind it.
  for (int64_t number = low->value;; ++number) {
    if (number % static_cast<int64_t>(value) == 0) return {};
    if (number == high->value) break;
  }
  return InvalidArgument("{}/multipleOf: none is between {} and {}", at, low->key, high->key);
}

Status CheckIntegers(const json::object& schema, const std::string& at) {
  std::optional<Bound> low, high;
  for (const std::string_view key : {"minimum", "exclusiveMinimum"}) {
    const bool exclusive = key != "minimum";
    const std::optional<int64_t> value = TRY(WholeBound(schema, key, !exclusive, at));
    if (!value) continue;
    if (exclusive && *value == std::numeric_limits<int64_t>::max())
      return NoNumber(at, key, "64 bits");
    if (!low || *value + exclusive > low->value) low = {key, *value + exclusive};
  }
  for (const std::string_view key : {"maximum", "exclusiveMaximum"}) {
    const bool exclusive = key != "maximum";
    const std::optional<int64_t> value = TRY(WholeBound(schema, key, exclusive, at));
    if (!value) continue;
    if (exclusive && *value == std::numeric_limits<int64_t>::min())
      return NoNumber(at, "64 bits", key);
    if (!high || *value - exclusive < high->value) high = {key, *value - exclusive};
  }
  if (low && high && low->value > high->value) return NoNumber(at, low->key, high->key);
  return CheckMultiple(schema, low ? &*low : nullptr, high ? &*high : nullptr, at);
}

Status CheckFractions(const json::object& schema, const std::string& at) {
  if (schema.contains("multipleOf")) {
    return InvalidArgument("{}/multipleOf: answers can be held to it beside the type integer alone",
                           at);
  }
  for (const std::string_view low : {"minimum", "exclusiveMinimum"}) {
    for (const std::string_view high : {"maximum", "exclusiveMaximum"}) {
      if (!schema.contains(low) || !schema.contains(high)) continue;
      const auto least = schema.at(low).to_number<double>();
      const auto most = schema.at(high).to_number<double>();
      const bool open = low != "minimum" || high != "maximum";
      if (least > most || (open && least == most)) return NoNumber(at, low, high);
    }
  }
  return {};
}

}  // namespace

Status CheckTypeNames(const json::object& schema, const std::string& at) {
  const json::value* type = schema.if_contains("type");
  if (type == nullptr) return {};
  const json::array* list = type->if_array();
  if (list != nullptr && list->empty()) return InvalidArgument("{}/type must name a type", at);
  const json::value* names = list != nullptr ? list->data() : type;
  for (size_t i = 0; i < (list != nullptr ? list->size() : 1); ++i) {
    const json::string* name = names[i].if_string();
    if (name != nullptr && std::ranges::find(kTypes, std::string_view(*name)) != kTypes.end()) {
      continue;
    }
    return InvalidArgument(
        "{}/type: {} is no type: there are string, number, integer, boolean, null, object and "
        "array",
        at, json::serialize(names[i]));
  }
  return {};
}

bool HasType(const json::object& schema, std::string_view type) {
  const json::value* given = schema.if_contains("type");
  const json::array* list = given != nullptr ? given->if_array() : nullptr;
  if (list == nullptr) return given != nullptr && *given == json::value(type);
  return std::ranges::find(*list, json::value(type)) != list->end();
}

Status CheckNumbers(const json::object& schema, const std::string& at) {
  for (const std::string_view key :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    const json::value* given = schema.if_contains(key);
    if (given == nullptr) continue;
    if (!given->is_number()) return InvalidArgument("{}/{} must be a number", at, key);
    if (key == "multipleOf" && given->to_number<double>() <= 0) {
      return InvalidArgument("{}/{} must be above 0", at, key);
    }
  }
  if (HasType(schema, "number")) TRY(CheckFractions(schema, at));
  return HasType(schema, "integer") ? CheckIntegers(schema, at) : Status();
}

Status CheckStrings(const json::object& schema, const std::string& at) {
  if (!schema.contains("minLength") && !schema.contains("maxLength")) return {};
  if (schema.contains("pattern")) {
    return InvalidArgument(
        "{}: answers cannot be held to lengths beside pattern; say them in it, as [a-z]{{1,3}}",
        at);
  }
  const json::value* format = schema.if_contains("format");
  if (format == nullptr ||
      std::ranges::find(kFormats, std::string_view(format->get_string())) == kFormats.end()) {
    return {};
  }
  return InvalidArgument("{}: answers cannot be held to lengths beside this format; leave them out",
                         at);
}

Status CheckItems(const json::object& schema, bool strict, const std::string& at) {
  const json::value* given = schema.if_contains("prefixItems");
  const json::array* prefix = given != nullptr ? given->if_array() : nullptr;
  for (size_t i = 0; prefix != nullptr && i < prefix->size(); ++i) {
    if ((*prefix)[i].is_object()) continue;
    return InvalidArgument("{}/prefixItems/{} must be an object: write {{}} for anything", at, i);
  }
  const json::value* items = schema.if_contains("items");
  const bool closed = items != nullptr ? *items == json::value(false)
                                       : strict && !schema.contains("unevaluatedItems");
  const auto named = static_cast<int64_t>(prefix != nullptr ? prefix->size() : 0);
  const json::value* least = schema.if_contains("minItems");
  const json::value* most = schema.if_contains("maxItems");
  if (most != nullptr && most->get_int64() < named) {
    return InvalidArgument("{}: maxItems is below the number of prefixItems", at);
  }
  if (closed && least != nullptr && least->get_int64() > named) {
    return InvalidArgument("{}: minItems asks for items that nothing allows: say items", at);
  }
  return {};
}

Status CheckNames(const json::value& names, const std::string& at) {
  const json::object* schema = names.if_object();
  if (schema == nullptr) return InvalidArgument("{} must be an object; leave it out", at);
  const json::value* type = schema->if_contains("type");
  bool strings = type == nullptr || *type == json::value("string");
  for (const char* head : {"$ref", "anyOf", "oneOf", "allOf"}) strings &= !schema->contains(head);
  if (const json::value* value = schema->if_contains("const")) strings &= value->is_string();
  if (const json::value* list = schema->if_contains("enum")) {
    strings &= list->is_array() && std::ranges::all_of(list->get_array(), &json::value::is_string);
  }
  return strings ? Status()
                 : InvalidArgument("{} must be of the type string, or an enum of strings", at);
}

}  // namespace fathom
