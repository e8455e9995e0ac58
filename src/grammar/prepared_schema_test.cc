// What schemas take that xgrammar alone would refuse, or take for something else.
#include "grammar/prepared_schema.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

void ExpectTakes(const std::string& schema, bool strict, const std::vector<std::string>& valid,
                 const std::vector<std::string>& invalid) {
  static const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const GrammarSpec spec{GrammarKind::kJsonSchema, schema, strict};
  const Status checked = CheckGrammar(spec);
  ASSERT_TRUE(checked.ok()) << schema << ": " << checked.message();
  const auto grammar = compile(spec);
  ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  for (const std::string& text : valid) EXPECT_TRUE(TakesBytes(**grammar, text)) << schema << text;
  for (const std::string& text : invalid) {
    EXPECT_FALSE(TakesBytes(**grammar, text)) << schema << text;
  }
}

// Though these say nothing of which properties and items there are.
TEST(PreparedSchema, StrictForbidsWhatNothingNames) {
  ExpectTakes(R"({"type": "object"})", true, {"{}"}, {R"({"a": 1})", "1"});
  ExpectTakes(R"({"type": "object", "properties": {}})", true, {"{}"}, {R"({"a": 1})"});
  ExpectTakes(R"({"type": "array"})", true, {"[]"}, {"[1]"});
  ExpectTakes(R"({"type": ["object", "null"]})", true, {"{}", "null"}, {R"({"a": 1})"});
  ExpectTakes("{}", true, {"{}", "[]", "1", "\"a\"", "-1.5", "true", "null"},
              {R"({"a": 1})", "[1]"});
  ExpectTakes(R"({"properties": {"a": {"title": "A"}, "b": {"items": {"type": "object"}}}})", true,
              {"{}", R"({"a": {}})", R"({"a": "x", "b": [{}]})"},
              {R"({"a": {"c": 1}})", R"({"b": [{"c": 1}]})", R"({"c": 1})"});
  ExpectTakes(R"({"$ref": "#/x/y", "x": {"y": {"type": "object"}}})", true, {"{}"},
              {R"({"a": 1})"});
  ExpectTakes(R"({"anyOf": [{"type": "object"}, {"type": "integer"}]})", true, {"{}", "1"},
              {R"({"a": 1})"});
}

TEST(PreparedSchema, StrictLeavesOpenWhatSaysSo) {
  ExpectTakes(R"({"type": "object", "additionalProperties": true})", true, {R"({"a": {"b": 1}})"},
              {"1"});
  ExpectTakes(R"({"type": "object", "additionalProperties": {}})", true, {R"({"a": {"b": 1}})"},
              {"1"});
  ExpectTakes(R"({"type": "object", "additionalProperties": {"type": "object"}})", true,
              {R"({"a": {}})"}, {R"({"a": {"b": 1}})"});
  ExpectTakes(R"({"type": "array", "items": true})", true, {R"([1, {"a": 1}])"}, {"1"});
  ExpectTakes(R"({"type": "object", "unevaluatedProperties": true})", true, {R"({"a": 1})"}, {});
  ExpectTakes(R"({"type": "object", "propertyNames": {"enum": ["a"]}})", true, {R"({"a": 1})"},
              {R"({"b": 1})"});
  ExpectTakes(R"({"type": "object", "patternProperties": {"^a$": {}}})", true,
              {"{}", R"({"a": 1})", R"({"a": {}})"}, {R"({"b": 1})", R"({"a": {"c": 1}})"});
}

TEST(PreparedSchema, WithoutStrictNothingIsClosed) {
  for (const char* schema : {"{}", R"({"type": "object"})", R"({"properties": {"b": {}}})"}) {
    ExpectTakes(schema, false, {R"({"a": [1, {"c": {}}]})"}, {"a"});
    EXPECT_EQ(PreparedSchema(schema, false), schema);
  }
}

TEST(PreparedSchema, RequiredNamesProperties) {
  ExpectTakes(R"({"type": "object", "required": ["a"]})", false,
              {R"({"a": 1})", R"({"a": {"x": []}, "b": 2})"}, {"{}", R"({"b": 1})"});
  ExpectTakes(R"({"properties": {"a": {"type": "null"}}, "required": ["b"],
                  "additionalProperties": {"type": "integer"}})",
              false, {R"({"b": 1})", R"({"a": null, "b": 1, "c": 2})"},
              {R"({"b": "x"})", R"({"a": null})"});
  ExpectTakes(R"({"properties": {"a": {"type": "null"}}, "required": ["b"]})", true,
              {R"({"b": 1})", R"({"a": null, "b": {}})"}, {R"({"b": 1, "c": 2})", "{}"});
  ExpectTakes(R"({"type": ["object", "null"], "required": ["a"]})", false, {"null", R"({"a": 1})"},
              {"{}"});
}

constexpr char kCat[] = R"({"type": "object", "properties": {"kind": {"const": "cat"},
    "lives": {"type": "integer"}}, "required": ["kind", "lives"], "additionalProperties": false})";
constexpr char kDog[] = R"({"type": "object", "properties": {"kind": {"const": "dog"}},
    "required": ["kind"], "additionalProperties": false})";

TEST(PreparedSchema, OneOfWhoseBranchesCannotOverlap) {
  ExpectTakes(R"({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]})", false,
              {"1", "\"abc\""}, {"\"abcd\"", "1.5"});
  ExpectTakes(R"({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]})",
              false, {R"({"a": 1})", "null"}, {"1"});
  ExpectTakes(R"({"oneOf": [{"type": "array", "items": {"type": "null"}}, {"type": "integer"}]})",
              false, {"[null]", "7"}, {"[1]"});
  const std::string union_of = std::string(R"({"oneOf": [{"$ref": "#/$defs/Cat"},
      {"$ref": "#/$defs/Dog"}, {"type": "null"}], "discriminator": {"propertyName": "kind",
      "mapping": {"cat": "#/$defs/Cat"}}, "$defs": {"Cat": )") +
                               kCat + ", \"Dog\": " + kDog + "}}";
  for (const bool strict : {false, true}) {
    ExpectTakes(union_of, strict, {R"({"kind": "cat", "lives": 9})", R"({"kind": "dog"})", "null"},
                {R"({"kind": "cat"})", R"({"kind": "cow"})"});
  }
  // A property of one branch that the other forbids, one that has another type there, one that only
  // one of them requires, and choices within branches.
  for (const char* schema :
       {R"({"oneOf": [{"type": "object", "required": ["a"]},
                      {"type": "object", "properties": {"b": {}}, "additionalProperties": false}]})",
        R"({"oneOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
                      {"type": "object", "properties": {"a": {"type": "array"}}}]})",
        R"({"oneOf": [{"anyOf": [{"type": "null"}, {"const": 3}]},
                      {"oneOf": [{"type": "string"}, {"enum": [1, 2]}]}]})",
        R"({"oneOf": [{"allOf": [{"type": "null"}]}, {"type": "boolean"}]})",
        R"({"oneOf": [{"const": {"a": [1]}}, {"const": {"a": [2]}}, {"enum": [[1], [2]]}]})"}) {
    ExpectTakes(schema, false, {}, {"-"});
  }
}

// A string of counted length holds what other strings do.
TEST(PreparedSchema, NoStringHasControlCharacters) {
  for (const char* more :
       {"", R"(, "maxLength": 4)", R"(, "minLength": 1)", R"(, "pattern": "^[^b]{1,4}$")"}) {
    const std::string schema = std::string(R"({"type": "string")") + more + "}";
    ExpectTakes(schema, false, {"\"a\"", "\"\xc3\xa9 x\""}, {});
    for (char c = 1; c < ' '; ++c) ExpectTakes(schema, false, {}, {std::string("\"a") + c + "\""});
    ExpectTakes(schema, false, {}, {std::string("\"a\0\"", 4)});
  }
}

TEST(PreparedSchema, OneOfWhoseBranchesMayOverlap) {
  for (const char* schema :
       {R"({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "number", "minimum": 4}]})",
        R"({"oneOf": [{"type": "string"}, {"properties": {"a": {}}}]})",  // takes strings too
        R"({"oneOf": [{"$ref": "#"}, {"type": "null"}]})", R"({"oneOf": [true, {"type": "null"}]})",
        R"({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}},
                      {"type": "object", "properties": {"a": {"const": 2}}}]})",
        R"({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
                      {"type": "object", "properties": {"b": {"const": 2}}, "required": ["b"]}]})",
        R"({"oneOf": [{"$ref": "#/$defs/a"}, {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}],
            "$defs": {"a": {"type": "array"}}})"}) {
    const Status status = CheckSchema(schema, false);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << schema;
  }
}

// However many pairs there are: what cannot be compared soon is refused.
TEST(PreparedSchema, ComparingBranchesIsBounded) {
  const auto branch = [](int first) {
    std::string values = std::to_string(first);
    for (int i = 1; i < 600; ++i) values += "," + std::to_string(first + i);
    return R"({"type": "object", "properties": {"k": {"enum": [)" + values +
           R"(]}}, "required": ["k"]})";
  };
  std::string schema = R"({"$defs": {"a": )" + branch(0) + R"(, "b": )" + branch(1000) +
                       R"(}, "anyOf": [{"type": "null"})";
  const std::string one = R"(,{"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]})";
  EXPECT_TRUE(CheckSchema(schema + one + "]}", false).ok());
  for (int i = 0; i < 1000; ++i) schema += one;
  const Status status = CheckSchema(schema + "]}", false);
  EXPECT_NE(status.message().find("may overlap"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fathom
