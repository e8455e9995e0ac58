#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/schema_keywords.h"

namespace fathom {
namespace {

namespace json = boost::json;

using Values = std::vector<json::value>;

// What a branch takes, where that is known: single values, or whole types.
struct Branch {
  std::optional<Values> values;
  std::set<std::string> types;
};

bool IsWhole(const json::value& value) {
  return value.is_int64() || value.is_uint64();
}

// Whether they may be the same value; of numbers with a fraction nobody knows.
bool MayBeEqual(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return !IsWhole(a) || !IsWhole(b) || a == b;
  if (a.is_array() && b.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(), MayBeEqual);
  }
  if (a.is_object() && b.is_object()) {
    const json::object& other = b.get_object();
    return a.get_object().size() == other.size() &&
           std::ranges::all_of(a.get_object(), [&](const auto& member) {
             const json::value* same = other.if_contains(member.key());
             return same != nullptr && MayBeEqual(member.value(), *same);
           });
  }
  return a == b;
}

bool AnyMayBeEqual(const Values& a, const Values& b) {
  return std::ranges::any_of(a, [&](const json::value& one) {
    return std::ranges::any_of(b, [&](const json::value& other) { return MayBeEqual(one, other); });
  });
}

bool IsNumeric(const std::string& type) {
  return type == "integer" || type == "number";
}

std::string TypeOf(const json::value& value) {
  if (value.is_string()) return "string";
  if (value.is_bool()) return "boolean";
  if (value.is_null()) return "null";
  if (value.is_array()) return "array";
  return value.is_object() ? "object" : "number";
}

bool AnyIsOfType(const Values& values, const std::set<std::string>& types) {
  return std::ranges::any_of(values, [&](const json::value& value) {
    const std::string type = TypeOf(value);
    return types.contains(type) || (type == "number" && types.contains("integer"));
  });
}

bool AnyInBoth(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::ranges::any_of(a, [&](const std::string& type) {
    return b.contains(type) || (IsNumeric(type) && std::ranges::any_of(b, IsNumeric));
  });
}

bool MayOverlap(const Branch& a, const Branch& b) {
  if (a.values && b.values) return AnyMayBeEqual(*a.values, *b.values);
  if (a.values) return AnyIsOfType(*a.values, b.types);
  return b.values ? AnyIsOfType(*b.values, a.types) : AnyInBoth(a.types, b.types);
}

std::optional<Values> ValuesOf(const json::value& schema) {
  const json::object* object = schema.if_object();
  if (object == nullptr) return std::nullopt;
  for (const char* head : {"$ref", "anyOf", "oneOf", "allOf"}) {
    if (object->contains(head)) return std::nullopt;
  }
  if (const json::value* value = object->if_contains("const")) return Values{*value};
  const json::value* list = object->if_contains("enum");
  if (list == nullptr || !list->is_array() || list->get_array().empty()) return std::nullopt;
  return Values(list->get_array().begin(), list->get_array().end());
}

// `type` and what describes: any further keyword says more than a type.
std::optional<Branch> BranchOf(const json::value& schema) {
  if (auto values = ValuesOf(schema)) return Branch{.values = std::move(values), .types = {}};
  constexpr std::string_view kSaysNothing[] = {"type",     "title",      "default",  "description",
                                               "examples", "deprecated", "readOnly", "writeOnly",
                                               "$comment", "$schema"};
  const json::object* object = schema.if_object();
  if (object == nullptr || !object->contains("type")) return std::nullopt;
  for (const auto& member : *object) {
    const std::string_view key = member.key();
    if (std::ranges::find(kSaysNothing, key) == std::end(kSaysNothing)) return std::nullopt;
  }
  Branch branch;
  const json::value& type = object->at("type");
  const json::array* list = type.if_array();
  for (size_t i = 0; i < (list != nullptr ? list->size() : 1); ++i) {
    branch.types.emplace((list != nullptr ? (*list)[i] : type).as_string());
  }
  if (branch.types.contains("object")) return std::nullopt;
  return branch;
}

// The values of a property that objects of the branch have.
std::optional<Values> ValuesOfProperty(const json::value& schema, std::string_view name) {
  const json::object* object = schema.if_object();
  if (object == nullptr || !object->contains("type") || object->at("type") != "object") {
    return std::nullopt;
  }
  const json::value* required = object->if_contains("required");
  const json::value* properties = object->if_contains("properties");
  if (required == nullptr || properties == nullptr || !required->is_array() ||
      !properties->is_object()) {
    return std::nullopt;
  }
  const auto is_name = [&](const json::value& one) { return one == json::value(name); };
  const json::value* property = properties->get_object().if_contains(name);
  if (property == nullptr || std::ranges::none_of(required->get_array(), is_name)) {
    return std::nullopt;
  }
  return ValuesOf(*property);
}

template <class T, class Overlap>
bool AreDisjoint(const std::vector<std::optional<T>>& all, Overlap overlap) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) return false;
    for (size_t j = 0; j < i; ++j) {
      if (overlap(*all[i], *all[j])) return false;
    }
  }
  return true;
}

// A property by whose value an object's branch is known.
bool HasDiscriminator(const json::array& branches) {
  const json::object* first = branches.front().if_object();
  const json::value* properties = first != nullptr ? first->if_contains("properties") : nullptr;
  if (properties == nullptr || !properties->is_object()) return false;
  return std::ranges::any_of(properties->get_object(), [&](const auto& member) {
    std::vector<std::optional<Values>> values;
    for (const json::value& branch : branches) {
      values.push_back(ValuesOfProperty(branch, member.key()));
    }
    return AreDisjoint(values, AnyMayBeEqual);
  });
}

}  // namespace

Status CheckOneOf(const json::array& branches, const std::string& at) {
  std::vector<std::optional<Branch>> each;
  for (const json::value& branch : branches) each.push_back(BranchOf(branch));
  if (AreDisjoint(each, MayOverlap) || HasDiscriminator(branches)) return {};
  return InvalidArgument(
      "{}/oneOf: its branches may overlap: write anyOf, or give each a type of its own, or require "
      "a property with a const of its own",
      at);
}

}  // namespace fathom
