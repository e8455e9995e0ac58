// Schemas and structural tags whose parts are of any kind, wherever they are looked at from.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "grammar/grammar_limits.h"
#include "grammar/prepared_schema.h"
#include "grammar/structural_tag.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr int kRounds = 20'000;

class Damage {
 public:
  explicit Damage(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  json::object Object(int depth) {
    json::object object;
    for (uint32_t i = rng_.Below(5); i > 0; --i) object[Key()] = Value(depth);
    return object;
  }
  json::value Value(int depth) {
    static const std::vector<json::value> plain = {
        nullptr, true,     false,     0,         5,        -1,    0.5,        1e300,         "",
        "x",     "#/then", "#/anyOf", "integer", "object", "tag", "sequence", "const_string"};
    const size_t kind = Below(depth > 0 ? 4 : 2);
    if (kind < 2) return plain[Below(plain.size())];
    if (kind == 2) return Object(depth - 1);
    json::array list;
    for (size_t i = Below(4); i > 0; --i) list.push_back(Value(depth - 1));
    return list;
  }

 private:
  size_t Below(size_t end) { return rng_.Below(static_cast<uint32_t>(end)); }
  std::string Key() { return keys_[Below(keys_.size())]; }

  const std::vector<std::string> keys_;
  Rng rng_{20261124};
};

// What is refused is refused in words; a check that does not hold would end the process.
TEST(DamagedSchemas, AreRefusedOrTaken) {
  Damage damage({"$ref",
                 "const",
                 "enum",
                 "anyOf",
                 "oneOf",
                 "allOf",
                 "properties",
                 "required",
                 "patternProperties",
                 "propertyNames",
                 "additionalProperties",
                 "minProperties",
                 "maxProperties",
                 "items",
                 "prefixItems",
                 "minItems",
                 "maxItems",
                 "minimum",
                 "maximum",
                 "exclusiveMinimum",
                 "multipleOf",
                 "minLength",
                 "maxLength",
                 "pattern",
                 "format",
                 "type",
                 "type",
                 "$defs",
                 "then",
                 "x"});
  int taken = 0;
  for (int round = 0; round < kRounds; ++round) {
    json::object schema = damage.Object(/*depth=*/3);
    const std::string text = json::serialize(schema);
    const bool strict = round % 2 == 0;
    const Status status = CheckSchema(text, strict);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << text;
    if (!status.ok()) continue;
    EXPECT_TRUE(json::parse(PreparedSchema(text, strict)).is_object()) << text;
    ++taken;
  }
  EXPECT_GT(taken, kRounds / 100);
}

TEST(DamagedSchemas, WhatIsReferredToMayBeNoSchema) {
  for (const char* key : {"anyOf", "oneOf", "allOf", "$ref"}) {
    for (const char* value : {"5", "null", "\"x\"", "{}", "[]", "true"}) {
      const std::string there = fmt::format(R"({{"{}": {}}})", key, value);
      for (const char* from :
           {R"({{"$ref": "#/x", "x": {}}})", R"({{"anyOf": [{{"$ref": "#/x"}}], "x": {}}})",
            R"({{"items": {{"$ref": "#/x"}}, "x": {}}})"}) {
        const std::string schema = fmt::format(fmt::runtime(from), there);
        EXPECT_EQ(CheckSchema(schema, false).code(), StatusCode::kInvalidArgument) << schema;
      }
    }
  }
}

// Behind the last of 64 bits there is no integer.
TEST(DamagedSchemas, MultiplesAreLookedForUpToTheLastInteger) {
  const char* schema =
      R"({{"type": "integer", "multipleOf": 1024, "minimum": {}, "maximum": 9223372036854775807}})";
  EXPECT_EQ(CheckSchema(fmt::format(fmt::runtime(schema), 9223372036854775800), false).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckSchema(fmt::format(fmt::runtime(schema), 9223372036854774784), false).ok());
}

void CollectParts(json::value& value, std::vector<json::value*>* parts) {
  parts->push_back(&value);
  if (json::object* object = value.if_object()) {
    for (auto& [key, part] : *object) CollectParts(part, parts);
  } else if (json::array* list = value.if_array()) {
    for (json::value& part : *list) CollectParts(part, parts);
  }
}

// Sound ones with another value in one or two places.
TEST(DamagedSchemas, TagsAreRefusedOrTaken) {
  const char* const sound[] = {
      R"({"structures": [{"begin": "<f=", "schema": {"type": "object"}, "end": "</f>"}],
          "triggers": ["<f"]})",
      R"({"format": {"type": "sequence", "elements": [
          {"type": "repeat", "min": 1, "max": 3, "content": {"type": "regex", "pattern": "a+"}},
          {"type": "or", "elements": [{"type": "const_string", "value": "x"},
                                      {"type": "grammar", "grammar": "root ::= [a-z]"}]}]}})",
      R"({"format": {"type": "triggered_tags", "triggers": ["<"], "at_least_one": true, "tags": [
          {"begin": "<a>", "content": {"type": "json_schema", "json_schema": {"minimum": 3,
           "type": "integer"}}, "end": ["</a>", "</b>"]}]}})"};
  Damage damage({"type", "begin", "content", "end", "elements", "min", "json_schema", "pattern"});
  Rng rng(20261124);
  int taken = 0;
  for (int round = 0; round < kRounds; ++round) {
    json::value tag = json::parse(sound[rng.Below(std::size(sound))]);
    for (uint32_t i = 1 + rng.Below(2); i > 0; --i) {
      std::vector<json::value*> parts;
      CollectParts(tag, &parts);
      *parts[rng.Below(static_cast<uint32_t>(parts.size()))] = damage.Value(/*depth=*/2);
    }
    const Result<std::string> read = ReadStructuralTag(json::serialize(tag));
    if (!read.ok()) {
      EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
      continue;
    }
    const Status status = CheckStructuralTag(*read);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << *read;
    taken += status.ok();
  }
  EXPECT_GT(taken, kRounds / 100);
}

}  // namespace
}  // namespace fathom
