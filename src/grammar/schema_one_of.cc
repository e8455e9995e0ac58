#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grammar/schema_keywords.h"

namespace fathom {
namespace {

namespace json = boost::json;

using Values = std::span<const json::value>;

bool IsWhole(const json::value& value) {
  return value.is_int64() || value.is_uint64();
}

// Types as bits; integers are numbers.
constexpr std::array<std::string_view, 6> kTypes = {"string", "number", "boolean",
                                                    "null",   "array",  "object"};
constexpr unsigned kAnyType = 63, kNumber = 2, kObject = 32;

unsigned TypeOf(const json::value& value) {
  if (value.is_string()) return 1;
  if (value.is_number()) return kNumber;
  if (value.is_bool()) return 4;
  if (value.is_null()) return 8;
  return value.is_array() ? 16 : kObject;
}

// More than a schema takes, never less: keywords that are left out only narrow it.
struct Kind {
  std::optional<Values> values;          // these alone
  unsigned types = 0;                    // or of these
  const json::object* schema = nullptr;  // of its objects, if it says anything of them
};

bool AnyIsOfType(Values values, unsigned types) {
  return std::ranges::any_of(values,
                             [&](const json::value& v) { return (TypeOf(v) & types) != 0; });
}

const json::object* ObjectAt(const json::object& schema, std::string_view key) {
  const json::value* given = schema.if_contains(key);
  return given != nullptr ? given->if_object() : nullptr;
}

// Whether no object of the schema has the property.
bool Forbids(const json::object& schema, std::string_view name) {
  const json::value* others = schema.if_contains("additionalProperties");
  const json::object* properties = ObjectAt(schema, "properties");
  return others != nullptr && *others == json::value(false) &&
         !schema.contains("patternProperties") &&
         (properties == nullptr || !properties->contains(name));
}

class Overlaps {
 public:
  Overlaps(const json::value& root, int64_t* steps) : root_(root), steps_(*steps) {}

  std::vector<Kind> KindsOf(const json::value& schema) {
    std::vector<Kind> kinds;
    AddKinds(schema, /*depth=*/0, &kinds);
    return kinds;
  }

  // True also where it cannot be told, and where telling takes too long.
  bool May(const std::vector<Kind>& a, const std::vector<Kind>& b, int depth = 0) {
    return std::ranges::any_of(a, [&](const Kind& one) {
      return std::ranges::any_of(b, [&](const Kind& other) { return MayKinds(one, other, depth); });
    });
  }

 private:
  static constexpr int kDeepest = 8;

  bool Spend(int64_t steps = 1) {
    steps_ -= std::min(steps_, steps);
    return steps_ > 0;
  }

  void AddKinds(const json::value& schema, int depth, std::vector<Kind>* kinds) {
    const json::object* object = schema.if_object();
    if (object == nullptr || depth > kDeepest || !Spend(16)) {
      kinds->push_back({.types = kAnyType});
      return;
    }
    if (const json::value* ref = object->if_contains("$ref")) {
      const json::value* target = ref->is_string() ? SchemaAt(root_, ref->get_string()) : nullptr;
      if (target != nullptr) return AddKinds(*target, depth + 1, kinds);
      kinds->push_back({.types = kAnyType});
      return;
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const json::value* list = object->if_contains(key);
      if (list == nullptr || !list->is_array() || list->get_array().empty()) continue;
      // Of allOf the first: the others only narrow it.
      const size_t count = key == std::string_view("allOf") ? 1 : list->get_array().size();
      for (size_t i = 0; i < count; ++i) AddKinds(list->get_array()[i], depth + 1, kinds);
      return;
    }
    kinds->push_back(KindOf(*object));
  }

  static Kind KindOf(const json::object& schema) {
    if (const json::value* value = schema.if_contains("const")) {
      return {.values = Values(value, 1)};
    }
    const json::value* list = schema.if_contains("enum");
    if (list != nullptr && list->is_array()) {
      return {.values = Values(list->get_array().data(), list->get_array().size())};
    }
    Kind kind = {.schema = &schema};
    for (size_t i = 0; i < kTypes.size(); ++i) {
      if (!schema.contains("type") || HasType(schema, kTypes[i])) kind.types |= 1U << i;
    }
    if (HasType(schema, "integer")) kind.types |= kNumber;
    return kind;
  }

  // Whether they may be the same value; of numbers with a fraction nobody knows.
  bool MayBeEqual(const json::value& a, const json::value& b) {
    if (!Spend()) return true;
    if (a.is_number() && b.is_number()) return !IsWhole(a) || !IsWhole(b) || a == b;
    if (a.is_array() && b.is_array()) {
      return std::ranges::equal(
          a.get_array(), b.get_array(),
          [&](const json::value& one, const json::value& other) { return MayBeEqual(one, other); });
    }
    if (!a.is_object() || !b.is_object()) return a == b;
    const json::object& other = b.get_object();
    return a.get_object().size() == other.size() &&
           std::ranges::all_of(a.get_object(), [&](const auto& member) {
             const json::value* same = other.if_contains(member.key());
             return same != nullptr && MayBeEqual(member.value(), *same);
           });
  }

  bool MayKinds(const Kind& a, const Kind& b, int depth) {
    if (!Spend()) return true;
    if (a.values && b.values) {
      return std::ranges::any_of(*a.values, [&](const json::value& one) {
        return std::ranges::any_of(
            *b.values, [&](const json::value& other) { return MayBeEqual(one, other); });
      });
    }
    if (a.values) return AnyIsOfType(*a.values, b.types);
    if (b.values) return AnyIsOfType(*b.values, a.types);
    const unsigned both = a.types & b.types;
    if (both != kObject) return both != 0;
    return a.schema == nullptr || b.schema == nullptr || depth > kDeepest ||
           (!AreToldApart(*a.schema, *b.schema, depth) &&
            !AreToldApart(*b.schema, *a.schema, depth));
  }

  // By a property that objects of `a` must have, and that those of `b` have with other values, or
  // not at all.
  bool AreToldApart(const json::object& a, const json::object& b, int depth) {
    const json::value* required = a.if_contains("required");
    const json::object* of_a = ObjectAt(a, "properties");
    const json::object* of_b = ObjectAt(b, "properties");
    if (required == nullptr || !required->is_array()) return false;
    return std::ranges::any_of(required->get_array(), [&](const json::value& name) {
      if (!name.is_string() || !Spend()) return false;
      if (Forbids(b, name.get_string())) return true;
      const json::value* one = of_a != nullptr ? of_a->if_contains(name.get_string()) : nullptr;
      const json::value* other = of_b != nullptr ? of_b->if_contains(name.get_string()) : nullptr;
      return one != nullptr && other != nullptr && !May(KindsOf(*one), KindsOf(*other), depth + 1);
    });
  }

  const json::value& root_;
  int64_t& steps_;
};

}  // namespace

Status CheckOneOf(const json::value& root, const json::array& branches, const std::string& at,
                  int64_t* steps) {
  Overlaps overlaps(root, steps);
  std::vector<std::vector<Kind>> kinds;
  for (const json::value& branch : branches) kinds.push_back(overlaps.KindsOf(branch));
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!overlaps.May(kinds[i], kinds[j])) continue;
      return InvalidArgument(
          "{}/oneOf: its branches may overlap ({} and {}): write anyOf, or give each a type of "
          "its own, or require a property with a const of its own",
          at, j, i);
    }
  }
  return {};
}

}  // namespace fathom
