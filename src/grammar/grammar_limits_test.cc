#include "grammar/grammar_limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace fathom {
namespace {

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

void ExpectRefused(const Status& status, const std::string& says) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
}

TEST(GrammarLimits, SchemasThatPass) {
  for (const char* schema : {
           "true",
           "{}",
           R"({"type": "string", "minLength": 1, "maxLength": 10000})",
           R"({"type": ["integer", "null"], "minimum": 0})",
           R"({"enum": ["a", 1], "type": ["string", "integer"], "description": "x"})",
           R"({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null, "title": "N"})",
           R"({"$ref": "#/$defs/n", "description": "x", "$defs": {"n": {"type": "integer"}}})",
           R"({"type": "object", "properties": {"next": {"$ref": "#"}}})",
           R"({"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": false})",
           R"({"type": "array", "items": {"type": "string"}, "uniqueItems": false})",
       }) {
    const Status status = CheckSchema(schema, false);
    EXPECT_TRUE(status.ok()) << schema << ": " << status.message();
  }
}

// Each is within its own limit; 2000 of them took 300 MiB to compile.
TEST(GrammarLimits, StringsCountSoManyCharactersTogether) {
  const auto schema = [](int strings) {
    std::string properties;
    for (int i = 0; i < strings; ++i) {
      properties +=
          fmt::format(R"({}"p{}": {{"type": "string", "minLength": 1, "maxLength": 10000}})",
                      i > 0 ? "," : "", i);
    }
    return fmt::format(R"({{"type": "object", "properties": {{{}}}}})", properties);
  };
  EXPECT_TRUE(CheckSchema(schema(10), false).ok());
  ExpectRefused(CheckSchema(schema(11), false),
                "#/properties/p10/maxLength: the schema's strings may count 100000 characters");
}

TEST(GrammarLimits, PlacesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[1]", "#: a schema is an object or a boolean"},
      {"{", "no JSON"},
      {R"({"properties": {"a": {"items": {"not": {}}}}})", "#/properties/a/items: "},
      {R"({"anyOf": [{}, {"minimum": 3}]})", "#/anyOf/1: minimum needs a type"},
      {R"({"anyOf": []})", "#/anyOf must be a list"},
      {R"({"allOf": [{}, {}]})", "#/allOf: "},
      {R"({"$ref": "#/$defs/gone"})", "is not in the schema"},
      {R"({"$ref": "http://example.com"})", "is not in the schema"},
      {R"({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {}}})", "minimum beside $ref"},
      {R"({"anyOf": [{}], "type": "object"})", "type beside anyOf"},
      {R"({"enum": ["a"], "type": "integer"})", "#/enum has a value"},
      {R"({"enum": []})", "#/enum must be a list"},
      {R"({"type": "array", "uniqueItems": true})", "uniqueItems"},
      {R"({"type": "array", "maxItems": 1001})", "#/maxItems must be"},
      {R"({"type": "array", "minItems": -1})", "#/minItems must be"},
      {R"({"type": "array", "minItems": 1e300})", "#/minItems must be"},
      {R"({"type": "string", "maxLength": 10001})", "#/maxLength must be"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "#: minItems is above maxItems"},
      {R"({"properties": {"a": {"minLength": 3, "maxLength": 2}}})", "#/properties/a: minLength"},
      {R"({"type": "string", "format": "date", "pattern": "^2"})", "#: answers cannot be held to"},
      {R"({"type": []})", "#/type must name a type"},
      {R"({"type": "string", "pattern": 5})", "#/pattern must be a string"},
      {R"({"type": "string", "pattern": "a{99999}"})", "#/pattern repeats"},
      {R"({"properties": {"b": {"required": ["a"], "additionalProperties": false}}})",
       "#/properties/b/required: \"a\" is not among the properties"},
      {R"({"type": "object", "required": ["é"]})", "#/required: \"é\" can be written in several"},
      {R"({"type": "object", "required": [1]})", "#/required must be a list of names"},
      {R"({"type": "object", "required": ["a"], "propertyNames": {"enum": ["a"]}})",
       "#/required: answers cannot be held to \"a\" beside propertyNames"},
      {R"({"type": "object", "properties": {}, "patternProperties": {"a": {}}})", "beside"},
      {R"({"type": "object", "patternProperties": {"a": {}}})", "additionalProperties: false"},
      {R"({"type": "object", "minProperties": 1})", "#/minProperties"},
      {R"({"properties": [1]})", "#/properties must be an object"},
      {R"({"properties": {"x": {}}, "unevaluatedProperties": false})", "unevaluatedProperties"},
      {R"({"type": "array", "unevaluatedItems": {"type": "string"}})", "unevaluatedItems"},
      {R"({"type": "object", "properties": {"é": {}}})", "say additionalProperties: false"},
      {R"({"properties": {"a\nb": {}}, "additionalProperties": {"type": "null"}})",
       "say additionalProperties: false"},
  };
  for (const auto& [schema, says] : cases) ExpectRefused(CheckSchema(schema, false), says);
}

TEST(GrammarLimits, WhatSaysNothingIsTaken) {
  for (const char* schema : {R"({"type": "object", "unevaluatedProperties": true})",
                             R"({"type": "array", "uniqueItems": false, "unevaluatedItems": true})",
                             R"({"properties": {"é\n\"": {}}, "additionalProperties": false})"}) {
    EXPECT_TRUE(CheckSchema(schema, false).ok()) << schema;
  }
  EXPECT_TRUE(CheckSchema(R"({"properties": {"é": {}}})", true).ok());
}

// What refers to itself without any text between has no end, for a compiler neither.
TEST(GrammarLimits, EmptyCircles) {
  for (const char* schema : {
           R"({"$ref": "#"})",
           R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})",
           R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                              "b": {"allOf": [{"$ref": "#/$defs/a"}]}}})",
       }) {
    ExpectRefused(CheckSchema(schema, false), "refers to itself");
  }
  ExpectRefused(CheckSchema(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                "b": {"$ref": "#/$defs/a"}}})",
                            false),
                "#/$defs/b refers to itself and to nothing else");
}

TEST(GrammarLimits, Sizes) {
  const auto nested = [](int depth) {
    return Repeated(R"({"type":"array","items":)", depth) + "{}" + Repeated("}", depth);
  };
  EXPECT_TRUE(CheckSchema(nested(kMaxSchemaDepth - 1), false).ok());
  ExpectRefused(CheckSchema(nested(kMaxSchemaDepth), false), "nested more than 64 deep");
  ExpectRefused(CheckGrammar({GrammarKind::kJsonSchema, std::string(kMaxSchemaBytes + 1, ' ')}),
                "bytes");
  ExpectRefused(CheckGrammar({GrammarKind::kJsonSchema, ""}), "empty");
  const auto wide = [](int properties) {
    std::string text = R"({"type": "object", "properties": {"x": {})";
    for (int i = 1; i < properties; ++i) text += fmt::format(R"(,"p{}":{{}})", i);
    return text + "}}";
  };
  EXPECT_TRUE(CheckSchema(wide(kMaxOptionalProperties), false).ok());
  ExpectRefused(CheckSchema(R"({"items": )" + wide(kMaxOptionalProperties + 1) + "}", false),
                "#/items/properties: too many are optional: 400 may be in a row");
  // Those that are required count once, and end a row of others.
  const auto required = [&](int properties, int each) {
    std::string text = wide(properties);
    text.back() = ',';
    text += R"("required": ["gone")";
    for (int i = each; i < properties; i += each) text += fmt::format(R"(,"p{}")", i);
    return text + "]}";
  };
  EXPECT_TRUE(CheckSchema(required(kMaxSchemaProperties - 1, 1), false).ok());
  EXPECT_TRUE(CheckSchema(required(kMaxSchemaProperties - 1, 80), false).ok());
  ExpectRefused(CheckSchema(required(kMaxSchemaProperties - 1, 90), false),
                "too many are optional");
  ExpectRefused(CheckSchema(required(kMaxSchemaProperties, 1), false), "#/required has too many");
  ExpectRefused(CheckSchema(wide(kMaxSchemaProperties + 1), false), "more than 2000 properties");
  const auto many = [](int entries) {
    return R"({"enum": [1)" + Repeated(",1", entries - 1) + "]}";
  };
  EXPECT_TRUE(CheckSchema(many(kMaxEnumEntries), false).ok());
  ExpectRefused(CheckSchema(many(kMaxEnumEntries + 1), false), "values in enumerations");
}

TEST(GrammarLimits, Patterns) {
  const std::string deep =
      Repeated("(", kMaxPatternDepth - 1) + "a" + Repeated(")", kMaxPatternDepth - 1);
  for (const std::string& pattern :
       {std::string("a{100}"), std::string("(ab){10,20}c*"), std::string("[(){}]{3}\\("),
        std::string("((a{10}){10}){10}"), std::string("{a}"), deep}) {
    const Status status = CheckPattern(pattern, "it");
    EXPECT_TRUE(status.ok()) << pattern << ": " << status.message();
  }
  ExpectRefused(CheckPattern("", "it"), "it is empty");
  ExpectRefused(CheckPattern("(" + deep + ")", "it"), "deep");
  ExpectRefused(CheckPattern("((a{100}){100}){2}", "it"), "too large");
  ExpectRefused(CheckPattern("(a{1000}){1,}b{9000}c{1000}", "it"), "too large");
  ExpectRefused(CheckPattern("a{99999999999999999999}", "it"), "at most");
  ExpectRefused(CheckPattern(std::string("a\0b", 3), "it"), "U+0000");
  for (const char* pattern :
       {"^[a-z]{1,200}$", "^(\\d{1,3}\\.){3}\\d{1,3}$", "(a|bc*){1,90}", "(a+b*)*"}) {
    EXPECT_TRUE(CheckSchemaPattern(pattern, "it").ok()) << pattern;
  }
  ExpectRefused(CheckSchemaPattern("^(\\w{1,17} ?){1,17}$", "it"),
                "repeats what is itself repeated");
  ExpectRefused(CheckSchemaPattern("(((a?){5}){5}){5}", "it"), "125 times in all");
  const std::string choices = "a?b*c+(d{2,4})";  // seven
  EXPECT_TRUE(IsSmallAutomaton(choices + choices + "e{6}e{0,6}"));
  EXPECT_FALSE(IsSmallAutomaton(choices + choices + "e{6}e{0,7}"));
  EXPECT_FALSE(IsSmallAutomaton("(" + choices + "){3}"));
  ExpectRefused(CheckEbnf("root ::= (\"0123456789\"){9999} \"x\""), "too large");
  ExpectRefused(CheckEbnf("root ::= (\"0123456789\")\t{9999\n}"), "too large");
  ExpectRefused(CheckEbnf("# \rroot ::= (\"0123456789\"){9999}"), "too large");
  ExpectRefused(CheckEbnf("root ::= \"a\"{2,#\n9}"), "has a brace that is no count");
  EXPECT_TRUE(CheckEbnf("# (((((((((((((((((((((((((((((((((((((((\nroot ::= \"(\" [(]{3}").ok());
}

}  // namespace
}  // namespace fathom
