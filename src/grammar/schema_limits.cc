#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_limits.h"
#include "grammar/schema_keywords.h"

namespace fathom {
namespace {

namespace json = boost::json;

using Keywords = std::initializer_list<std::string_view>;

// Those that take the place of all others in a schema, in the order in which the compiler asks for
// them.
constexpr std::array<std::string_view, 6> kHeads = {"$ref",  "const", "enum",
                                                    "anyOf", "oneOf", "allOf"};
constexpr std::array<std::string_view, 7> kOfObjects = {
    "properties",           "required",      "patternProperties", "propertyNames",
    "additionalProperties", "minProperties", "maxProperties"};
constexpr std::array<std::string_view, 4> kOfArrays = {"items", "prefixItems", "minItems",
                                                       "maxItems"};
constexpr std::array<std::string_view, 9> kOfScalars = {
    "minimum",          "maximum",    "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength",        "pattern",    "format"};
// What says something that no grammar here holds an answer to.
constexpr std::array<std::string_view, 15> kNever = {"not",
                                                     "if",
                                                     "then",
                                                     "else",
                                                     "dependentRequired",
                                                     "dependencies",
                                                     "contains",
                                                     "minContains",
                                                     "maxContains",
                                                     "dependentSchemas",
                                                     "$dynamicRef",
                                                     "uniqueItems",
                                                     "$recursiveRef",
                                                     "unevaluatedItems",
                                                     "unevaluatedProperties"};

std::string_view TypeOf(const json::value& value) {
  if (value.is_string()) return "string";
  if (value.is_bool()) return "boolean";
  if (value.is_null()) return "null";
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  return value.is_double() ? "number" : "integer";
}

bool IsOfType(const json::value& value, const json::value& type) {
  if (const json::array* types = type.if_array()) {
    return std::any_of(types->begin(), types->end(),
                       [&](const json::value& one) { return IsOfType(value, one); });
  }
  const std::string_view is = TypeOf(value);
  return type == json::value(is) || (is == "integer" && type == json::value("number"));
}

class SchemaChecker {
 public:
  SchemaChecker(const json::value& root, bool strict) : root_(root), strict_(strict) {}

  Status CheckAll() {
    TRY(CheckTaken(root_, "#"));
    // What is referred to may stand where no keyword is. `targets_` grows meanwhile.
    for (size_t i = 0; i < targets_.size(); ++i) {
      const auto [target, at] = targets_[i];
      TRY(CheckTaken(*target, at));
    }
    return {};
  }

 private:
  // Of a schema that some value must meet.
  Status CheckTaken(const json::value& schema, const std::string& at) {
    if (schema != json::value(false)) return Check(schema, at);
    return InvalidArgument(
        "{}: no value is valid under false; leave it out, beside \"additionalProperties\": false",
        at);
  }

  Status Check(const json::value& schema, const std::string& at) {
    if (!checked_.insert(&schema).second || schema.is_bool()) return {};
    const json::object* object = schema.if_object();
    if (object == nullptr) return InvalidArgument("{}: a schema is an object or a boolean", at);
    for (const std::string_view key : kNever) {
      const json::value* given = object->if_contains(key);
      const bool may_be = key == "uniqueItems" || key.starts_with("unevaluated");
      // Which says nothing.
      if (given == nullptr || (may_be && *given == json::value(key != "uniqueItems"))) continue;
      return InvalidArgument("{}: answers cannot be held to {}; leave it out", at, key);
    }
    TRY(CheckTypeNames(*object, at));
    TRY(CheckParts(*object, at));
    for (const std::string_view head : kHeads) {
      if (object->contains(head)) return CheckHead(*object, head, at);
    }
    return CheckTyped(*object, at);
  }

  // Every schema within, wherever it stands.
  Status CheckParts(const json::object& schema, const std::string& at) {
    for (const std::string_view key : {"properties", "patternProperties", "$defs", "definitions"}) {
      const json::value* given = schema.if_contains(key);
      if (given == nullptr) continue;
      const json::object* named = given->if_object();
      if (named == nullptr) return InvalidArgument("{}/{} must be an object", at, key);
      properties_ += static_cast<int>(named->size());
      if (properties_ > kMaxSchemaProperties) {
        return InvalidArgument("{}/{}: the schema has more than {} properties", at, key,
                               kMaxSchemaProperties);
      }
      for (const auto& [name, one] : *named) {
        const std::string place = fmt::format("{}/{}/{}", at, key, std::string_view(name));
        if (key == "patternProperties") TRY(CheckSchemaPattern(name, place));
        TRY(key.ends_with("roperties") ? CheckTaken(one, place) : Check(one, place));
      }
    }
    for (const std::string_view key : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
      const json::value* given = schema.if_contains(key);
      if (given == nullptr) continue;
      const json::array* list = given->if_array();
      if (list == nullptr || list->empty()) {
        return InvalidArgument("{}/{} must be a list of schemas", at, key);
      }
      for (size_t i = 0; i < list->size(); ++i) {
        TRY(CheckTaken((*list)[i], fmt::format("{}/{}/{}", at, key, i)));
      }
    }
    for (const std::string_view key : {"items", "additionalProperties", "propertyNames"}) {
      const json::value* given = schema.if_contains(key);
      if (given != nullptr) TRY(Check(*given, fmt::format("{}/{}", at, key)));
    }
    return CheckCounts(schema, at);
  }

  Status CountLength(const json::object& schema, const std::string& at) {
    for (const std::string_view key : {"maxLength", "minLength"}) {
      const json::value* given = schema.if_contains(key);
      if (given == nullptr) continue;
      lengths_ += given->get_int64();
      if (lengths_ <= kMaxLengths) return {};
      return InvalidArgument("{}/{}: the schema's strings may count {} characters in all", at, key,
                             kMaxLengths);
    }
    return {};
  }

  Status CheckCounts(const json::object& schema, const std::string& at) {
    const auto at_most = [&](Keywords keys, int64_t most) -> Status {
      for (const std::string_view key : keys) {
        const json::value* given = schema.if_contains(key);
        if (given == nullptr) continue;
        const int64_t* count = given->if_int64();
        if (count != nullptr && *count >= 0 && *count <= most) continue;
        return InvalidArgument("{}/{} must be an integer between 0 and {}", at, key, most);
      }
      return {};
    };
    TRY(at_most({"minItems", "maxItems"}, kMaxItems));
    TRY(at_most({"minLength", "maxLength"}, kMaxLength));
    TRY(CountLength(schema, at));
    TRY(at_most({"minProperties", "maxProperties"}, kMaxSchemaProperties));
    for (const std::string_view key : {"pattern", "format", "$ref"}) {
      const json::value* given = schema.if_contains(key);
      if (given != nullptr && !given->is_string()) {
        return InvalidArgument("{}/{} must be a string", at, key);
      }
    }
    for (const std::string_view what : {"Items", "Length", "Properties"}) {
      const json::value* least = schema.if_contains(fmt::format("min{}", what));
      const json::value* most = schema.if_contains(fmt::format("max{}", what));
      if (least != nullptr && most != nullptr && least->get_int64() > most->get_int64()) {
        return InvalidArgument("{}: min{} is above max{}", at, what, what);
      }
    }
    const json::value* pattern = schema.if_contains("pattern");
    if (pattern != nullptr && schema.contains("format")) {
      return InvalidArgument("{}: answers cannot be held to pattern beside format; join them", at);
    }
    TRY(CheckNumbers(schema, at));
    TRY(CheckStrings(schema, at));
    TRY(CheckItems(schema, strict_, at));
    return pattern == nullptr
               ? Status()
               : CheckSchemaPattern(pattern->get_string(), fmt::format("{}/pattern", at));
  }

  // Beside such a keyword the compiler reads no other.
  Status CheckHead(const json::object& schema, std::string_view head, const std::string& at) {
    const bool values = head == "const" || head == "enum";
    const auto refuse = [&](const auto& keywords) -> Status {
      for (const std::string_view key : keywords) {
        if (key == head || !schema.contains(key)) continue;
        return InvalidArgument("{}: answers cannot be held to {} beside {}; join them", at, key,
                               head);
      }
      return {};
    };
    TRY(refuse(kHeads));
    TRY(refuse(kOfObjects));
    TRY(refuse(kOfArrays));
    TRY(refuse(kOfScalars));
    const json::value* type = schema.if_contains("type");
    if (values) return CheckValues(schema, head, type, at);
    if (type != nullptr) {
      return InvalidArgument("{}: answers cannot be held to type beside {}; move it into that", at,
                             head);
    }
    if (head == "allOf" && schema.at(head).get_array().size() > 1) {
      return InvalidArgument("{}/allOf: answers can be held to one schema, not to {} at once", at,
                             schema.at(head).get_array().size());
    }
    if (head == "oneOf") TRY(CheckOneOf(root_, schema.at(head).get_array(), at, &steps_));
    std::set<const json::value*> seen;
    return CheckInPlace(schema, at, seen);
  }

  Status CheckValues(const json::object& schema, std::string_view head, const json::value* type,
                     const std::string& at) {
    const json::value& given = schema.at(head);
    const json::array* list = head == "enum" ? given.if_array() : nullptr;
    if (head == "enum" && (list == nullptr || list->empty())) {
      return InvalidArgument("{}/enum must be a list of at least one value", at);
    }
    const json::value* first = list != nullptr ? list->data() : &given;
    const size_t count = list != nullptr ? list->size() : 1;
    entries_ += static_cast<int>(std::min<size_t>(count, kMaxEnumEntries + 1));
    if (entries_ > kMaxEnumEntries) {
      return InvalidArgument("{}/enum: the schema has more than {} values in enumerations", at,
                             kMaxEnumEntries);
    }
    for (size_t i = 0; type != nullptr && i < count; ++i) {
      if (!IsOfType(first[i], *type)) {
        return InvalidArgument("{}/{} has a value that is not of the type beside it", at, head);
      }
    }
    return {};
  }

  // References must lead somewhere, and choices must not lead back to themselves without any text.
  // What is referred to may not have been looked at: what is wrong there is refused in its turn.
  Status CheckInPlace(const json::object& schema, const std::string& at,
                      std::set<const json::value*>& seen) {
    if (const json::value* ref = schema.if_contains("$ref")) {
      if (!ref->is_string()) return {};
      const json::value* target = SchemaAt(root_, ref->get_string());
      if (target == nullptr) {
        return InvalidArgument(
            "{}/$ref: {} is not in the schema (only # and #/... are, without ~ "
            "and %)",
            at, json::serialize(*ref));
      }
      const std::string place(ref->get_string());
      targets_.emplace_back(target, place);
      return CheckBranch(*target, place, seen);
    }
    for (const std::string_view key : {"anyOf", "oneOf", "allOf"}) {
      const json::value* given = schema.if_contains(key);
      const json::array* list = given != nullptr ? given->if_array() : nullptr;
      for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
        TRY(CheckBranch((*list)[i], fmt::format("{}/{}/{}", at, key, i), seen));
      }
    }
    return {};
  }

  // `seen`: those on the way here, and those that are known to lead to text.
  Status CheckBranch(const json::value& schema, const std::string& at,
                     std::set<const json::value*>& seen) {
    const json::object* object = schema.if_object();
    if (object == nullptr) return {};
    if (std::find(way_.begin(), way_.end(), &schema) != way_.end()) {
      return InvalidArgument("{} refers to itself and to nothing else", at);
    }
    if (!seen.insert(&schema).second) return {};
    way_.push_back(&schema);
    const bool shallow = way_.size() <= kMaxSchemaDepth;
    const Status status =
        shallow ? CheckInPlace(*object, at, seen)
                : InvalidArgument("{} refers on more than {} times", at, kMaxSchemaDepth);
    way_.pop_back();
    return status;
  }

  Status CheckTyped(const json::object& schema, const std::string& at) {
    const auto any = [&](const auto& keywords) {
      return std::find_if(keywords.begin(), keywords.end(),
                          [&](std::string_view key) { return schema.contains(key); });
    };
    const bool like_object =
        schema.contains("properties") || schema.contains("additionalProperties");
    const bool like_array = schema.contains("items") || schema.contains("prefixItems");
    if (!schema.contains("type") && !like_object && !like_array) {
      for (const std::string_view key :
           {"required", "patternProperties", "propertyNames", "minProperties", "maxProperties",
            "minItems", "maxItems"}) {
        if (schema.contains(key)) return InvalidArgument("{}: {} needs a type", at, key);
      }
      const auto scalar = any(kOfScalars);
      if (scalar != kOfScalars.end()) return InvalidArgument("{}: {} needs a type", at, *scalar);
    }
    TRY(CountRequired(schema, at));
    TRY(CountOptional(schema, at));
    return CheckProperties(schema, strict_, at);
  }

  // Each name that `properties` lacks becomes one of them (PreparedSchema()).
  Status CountRequired(const json::object& schema, const std::string& at) {
    const json::value* required = schema.if_contains("required");
    if (required == nullptr || !required->is_array()) return {};
    const json::value* given = schema.if_contains("properties");
    const json::value* others = schema.if_contains("additionalProperties");
    const size_t bytes = others != nullptr ? json::serialize(*others).size() : 0;
    for (const json::value& name : required->get_array()) {
      const bool named =
          given != nullptr && name.is_string() && given->get_object().contains(name.get_string());
      if (named) continue;
      bytes_ += bytes;
      if (++properties_ <= kMaxSchemaProperties && bytes_ <= kMaxSchemaBytes) continue;
      return InvalidArgument("{}/required has too many names that are not in properties", at);
    }
    return {};
  }

  // Of each of them any that follows up to the next required one may come, at every token.
  Status CountOptional(const json::object& schema, const std::string& at) {
    const json::value* properties = schema.if_contains("properties");
    if (properties == nullptr) return {};
    std::set<std::string_view> required;
    if (const json::value* names = schema.if_contains("required"); names && names->is_array()) {
      for (const json::value& name : names->get_array()) {
        if (name.is_string()) required.insert(name.get_string());
      }
    }
    int64_t run = 0;
    for (const auto& member : properties->get_object()) {
      run = required.contains(member.key()) ? 0 : run + 1;
      if (run > 0) optional_ += 2 * run - 1;  // squares, run by run
    }
    if (optional_ <= int64_t{kMaxOptionalProperties} * kMaxOptionalProperties) return {};
    return InvalidArgument(
        "{}/properties: too many are optional: {} may be in a row, fewer in several objects; name "
        "some in required",
        at, kMaxOptionalProperties);
  }

  const json::value& root_;
  const bool strict_;
  int properties_ = 0;
  int entries_ = 0;
  int64_t lengths_ = 0;               // that its strings count
  int64_t optional_ = 0;              // the squares of how many optional properties are in a row
  size_t bytes_ = 0;                  // of schemas that `required` has copied
  int64_t steps_ = int64_t{4} << 20;  // that comparing the branches of oneOf may take
  std::vector<const json::value*> way_;
  std::set<const json::value*> checked_;
  std::vector<std::pair<const json::value*, std::string>> targets_;
};

}  // namespace

Status CheckSchema(std::string_view schema, bool strict) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kMaxSchemaDepth;
  const json::value root = json::parse(schema, error, {}, options);
  if (error == json::error::too_deep) {
    return InvalidArgument("the schema is nested more than {} deep", kMaxSchemaDepth);
  }
  if (error) return InvalidArgument("the schema is no JSON: {}", error.message());
  return SchemaChecker(root, strict).CheckAll();
}

}  // namespace fathom
