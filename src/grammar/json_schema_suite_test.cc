// The JSON Schema test suite (draft 7, Debian's json-schema-test-suite): what a compiled schema
// takes, an instance byte by byte, beside what the suite says of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "base/mmap.h"
#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr char kSuite[] = "/usr/share/json-schema-test-suite/tests/draft7";
// As the suite has it: Boost.JSON writes 2.2 as 2.2E0.
std::string TextOf(const json::value& value) {
  if (value.is_double()) return fmt::format("{}", value.as_double());
  std::string text;
  if (value.is_array()) {
    for (const json::value& item : value.as_array())
      text += (text.empty() ? "" : ",") + TextOf(item);
    return "[" + text + "]";
  }
  if (!value.is_object()) return json::serialize(value);
  for (const auto& [key, member] : value.as_object()) {
    text += (text.empty() ? "" : ",") + json::serialize(key) + ":" + TextOf(member);
  }
  return "{" + text + "}";
}

// A keyword without a `type` says nothing of instances of other types, where answers are held to
// one: such schemas are refused. With their type they are what is meant, and other instances
// invalid.
constexpr std::pair<const char*, const char*> kTypeOfKeyword[] = {
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"minLength", "string"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"items", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"additionalItems", "array"},
    {"properties", "object"},
    {"required", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"additionalProperties", "object"},
    {"propertyNames", "object"},
    {"patternProperties", "object"}};

std::string ImpliedType(const json::value& schema) {
  if (!schema.is_object() || schema.as_object().contains("type")) return "";
  for (const auto& [keyword, type] : kTypeOfKeyword) {
    if (schema.as_object().contains(keyword)) return type;
  }
  return "";
}

bool IsOfType(const json::value& instance, const std::string& type) {
  return type.empty() || (type == "object" && instance.is_object()) ||
         (type == "array" && instance.is_array()) || (type == "string" && instance.is_string()) ||
         (type == "number" && instance.is_number());
}

struct Counts {
  int schemas = 0, refused = 0;
  int valid = 0, invalid = 0;  // instances of those that are not refused
};

class JsonSchemaSuite : public testing::Test {
 protected:
  Result<std::shared_ptr<const Grammar>> Compile(const json::value& schema) const {
    const GrammarSpec spec{.kind = GrammarKind::kJsonSchema, .text = json::serialize(schema)};
    TRY(CheckGrammar(spec));
    return compile_(spec);
  }

  void Run(const std::string& file, const json::value& group, Counts& counts) {
    json::value schema = group.at("schema");
    ++counts.schemas;
    const std::string type = ImpliedType(schema);
    if (!type.empty()) schema.as_object()["type"] = type;
    const auto grammar = Compile(schema);
    if (!grammar.ok()) {
      ++counts.refused;
      return;
    }
    for (const json::value& test : group.at("tests").as_array()) {
      const json::value& instance = test.at("data");
      const bool valid = test.at("valid").as_bool() && IsOfType(instance, type);
      ++(valid ? counts.valid : counts.invalid);
      if (TakesBytes(**grammar, TextOf(instance)) == valid) continue;
      const std::string which =
          fmt::format("{}: {}: {}", file, group.at("description").as_string().c_str(),
                      test.at("description").as_string().c_str());
      EXPECT_TRUE(valid) << which << ": " << instance << " is taken, and invalid under " << schema;
      left_out_.insert(which);
    }
  }

  const GrammarCompiler::Compile compile_ = MakeXgrammarCompile(ByteVocabulary());
  std::set<std::string> left_out_;  // valid, and not taken
};

// Valid, and left out: properties in another order than the schema's, names beyond ASCII that a
// pattern allows, what stands around a pattern that is not anchored, and what has a keyword without
// its type inside.
const std::set<std::string> kLeftOut = {
    "additionalProperties: non-ASCII pattern with additionalProperties: matching the pattern is "
    "valid",
    "const: const with object: same object with different property order is valid",
    "pattern: pattern is not anchored: matches a substring", "ref: root pointer ref: match",
    "ref: root pointer ref: recursive match"};

TEST_F(JsonSchemaSuite, WhatIsTakenIsValid) {
  ASSERT_TRUE(std::filesystem::exists(kSuite)) << "tools/install_deps.sh --test installs it";
  Counts all;
  for (const auto& entry : std::filesystem::directory_iterator(kSuite)) {
    if (entry.path().extension() != ".json") continue;
    const json::value groups = json::parse(ReadFile(entry.path(), 1 << 20).value());
    Counts counts;
    for (const json::value& group : groups.as_array()) Run(entry.path().stem(), group, counts);
    fmt::print("{:<21} {:>3} schemas, {:>2} refused; {:>3} instances valid, {:>3} not\n",
               entry.path().stem().string(), counts.schemas, counts.refused, counts.valid,
               counts.invalid);
    all.schemas += counts.schemas;
    all.refused += counts.refused;
    all.valid += counts.valid;
    all.invalid += counts.invalid;
  }
  fmt::print("{} schemas, {} refused; {} instances valid, {} not\n", all.schemas, all.refused,
             all.valid, all.invalid);
  EXPECT_EQ(left_out_, kLeftOut);
  EXPECT_GT(all.schemas - all.refused, 40);
  EXPECT_GT(all.valid, 60);
  EXPECT_GT(all.invalid, 90);
}

}  // namespace
}  // namespace fathom
