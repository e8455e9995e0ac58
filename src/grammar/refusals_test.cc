// What is said of grammars that cannot be held to: of a schema the place and the way to mend it,
// and nothing in the compiler's own words of itself.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <utility>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"
#include "grammar/plain_sentence.h"
#include "grammar/structural_tag.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

// What the whole way says, as the server goes it.
std::string Refusal(GrammarSpec spec) {
  static const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const Status status = [&]() -> Status {
    if (spec.kind == GrammarKind::kStructuralTag) spec.text = TRY(ReadStructuralTag(spec.text));
    TRY(CheckGrammar(spec));
    return compile(spec).status();
  }();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << spec.text;
  const std::regex own(
      "heck failed|is false|\\.cc|\\.h:|[Xx]grammar|XGRAMMAR|parser error|parsing|\\n");
  EXPECT_FALSE(std::regex_search(status.message(), own)) << spec.text << ": " << status.message();
  return status.message();
}

void ExpectSays(const GrammarSpec& spec, const std::string& says) {
  const std::string message = Refusal(spec);
  EXPECT_NE(message.find(says), std::string::npos) << spec.text << ": " << message;
}

TEST(Refusals, SchemasAreRefusedByTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"false", "#: no value is valid under false"},
      {R"({"properties": {"a": false}})", "#/properties/a: no value"},
      {R"({"anyOf": [{}, false]})", "#/anyOf/1: no value"},
      {R"({"type": "nothing"})", "#/type: \"nothing\" is no type: there are string"},
      {R"({"type": ["integer", 5]})", "#/type: 5 is no type"},
      {R"({"items": {"type": "int"}})", "#/items/type: \"int\" is no type"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})",
       "#: minimum and maximum leave no number"},
      {R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4})",
       "#: exclusiveMinimum and exclusiveMaximum leave no number"},
      {R"({"type": "number", "exclusiveMinimum": 3, "maximum": 3})",
       "#: exclusiveMinimum and maximum"},
      {R"({"type": ["null", "number"], "minimum": 3.5, "maximum": 3})", "#: minimum and maximum"},
      {R"({"type": "integer", "minimum": 1.5})",
       "#/minimum: integers need a whole number: write 2"},
      {R"({"type": "integer", "maximum": -1.5})",
       "#/maximum: integers need a whole number: write -2"},
      {R"({"type": "integer", "maximum": 1e300})", "#/maximum is beyond the integers"},
      {R"({"type": "integer", "minimum": 18446744073709551615})",
       "#/minimum is beyond the integers"},
      {R"({"type": "integer", "exclusiveMinimum": 9223372036854775807})", "#: exclusiveMinimum"},
      {R"({"type": "integer", "minimum": "a"})", "#/minimum must be a number"},
      {R"({"type": "number", "exclusiveMaximum": true})", "#/exclusiveMaximum must be a number"},
      {R"({"type": "integer", "multipleOf": 0})", "#/multipleOf must be above 0"},
      {R"({"type": "integer", "multipleOf": 1.5})", "#/multipleOf: answers can be held to whole"},
      {R"({"type": "integer", "multipleOf": 5000})", "whole numbers up to 1024"},
      {R"({"type": "integer", "multipleOf": 3, "minimum": 1})", "#/multipleOf: beside bounds"},
      {R"({"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 10000})", "beside bounds"},
      {R"({"type": "integer", "multipleOf": 30, "minimum": 1, "maximum": 20})", "none is between"},
      {R"({"type": "number", "multipleOf": 0.1})",
       "#/multipleOf: answers can be held to it beside"},
      {R"({"type": "string", "pattern": "a+", "maxLength": 3})",
       "#: answers cannot be held to lengths"},
      {R"({"type": "string", "format": "date", "minLength": 3})",
       "#: answers cannot be held to lengths"},
      {R"({"type": "string", "pattern": "a(?=b)c"})", "#/pattern, character 2: "},
      {R"({"type": "string", "pattern": "\""})", "#/pattern matches no string that JSON writes"},
      {R"({"type": "string", "pattern": "\\ud800"})", "#/pattern, character 1: U+D800 is half"},
      {R"({"type": "object", "patternProperties": {"(": {}}, "additionalProperties": false})",
       "#/patternProperties/(, character 1: "},
      {R"({"type": "array", "prefixItems": [true]})", "#/prefixItems/0 must be an object"},
      {R"({"type": "array", "prefixItems": [{}, {}], "maxItems": 1})", "#: maxItems is below"},
      {R"({"type": "array", "prefixItems": [{}], "items": false, "minItems": 2})",
       "#: minItems asks"},
      {R"({"properties": {"a": {}}, "required": ["a"], "maxProperties": 0})",
       "#/maxProperties is below"},
      {R"({"type": "object", "propertyNames": {"type": "integer"}})", "#/propertyNames must be"},
      {R"({"type": "object", "propertyNames": {"enum": ["a", 1]}})", "#/propertyNames must be"},
      {R"({"type": "object", "propertyNames": true})", "#/propertyNames must be an object"},
      {R"({"$ref": "#/x/y", "x": {"y": {"type": "array", "uniqueItems": true}}})",
       "#/x/y: answers cannot be held to uniqueItems"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": false}})", "#/$defs/a: no value"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
       "#/oneOf: its branches may overlap"},
      {R"({"properties": {"a": {"oneOf": [{"type": "object"}, {"type": "object"}]}}})",
       "#/properties/a/oneOf: "},
      {R"({"oneOf": [{"const": 1}, {"enum": [1, 2]}]})", "#/oneOf: "},
      {R"({"oneOf": [{"const": 1.0}, {"const": 2.5}]})", "#/oneOf: "},
  };
  for (const auto& [schema, says] : cases) ExpectSays({GrammarKind::kJsonSchema, schema}, says);
  // Of a strict schema, items that nothing names are none.
  ExpectSays({GrammarKind::kJsonSchema, R"({"type": "array", "minItems": 1})", true},
             "#: minItems asks");
}

TEST(Refusals, SchemasThatPassBesideThem) {
  const auto compile = MakeXgrammarCompile(ByteVocabulary());
  for (const char* schema :
       {R"({"type": "integer", "minimum": 2.0, "maximum": 2})",
        R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})",
        R"({"type": "integer", "multipleOf": 3})",
        R"({"type": "integer", "multipleOf": 30, "minimum": 1, "exclusiveMaximum": 31})",
        R"({"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 9999})",
        R"({"type": "number", "minimum": 1.5, "exclusiveMaximum": 1.6})",
        R"({"type": "array", "items": false})",
        R"({"properties": {"a": {}}, "additionalProperties": false})",
        R"({"type": "array", "prefixItems": [{}], "minItems": 2})",
        R"({"$defs": {"unused": false}})",
        R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}})",
        R"({"oneOf": [{"type": "string"}, {"type": ["null", "number"], "title": "n"}]})",
        R"({"oneOf": [{"const": 1}, {"enum": [2, "1", null]}, {"type": "boolean"}]})",
        R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                      {"type": "object", "properties": {"k": {"enum": ["b"]}}, "required": ["k"]}]})",
        R"({"type": "string", "format": "nothing", "maxLength": 3})"}) {
    const GrammarSpec spec{GrammarKind::kJsonSchema, schema};
    const Status checked = CheckGrammar(spec);
    EXPECT_TRUE(checked.ok()) << schema << ": " << checked.message();
    const auto grammar = compile(spec);
    EXPECT_TRUE(grammar.ok()) << schema << ": " << grammar.status().message();
  }
}

TEST(Refusals, TagsAreRefusedByTheirPlace) {
  const auto of = [](const std::string& format) {
    return GrammarSpec{GrammarKind::kStructuralTag, R"({"format": )" + format + "}"};
  };
  const auto triggered = [](const char* triggers, const char* schema = "{}") {
    return GrammarSpec{GrammarKind::kStructuralTag,
                       std::string(R"({"triggers": )") + triggers +
                           R"(, "structures": [{"begin": "<f>", "schema": )" + schema +
                           R"(, "end": "</f>"}]})"};
  };
  ExpectSays(triggered(R"(["<g"])"),
             "structures/tags[0]/begin must begin with one of the triggers");
  ExpectSays(triggered(R"(["<f", "<f>"])"), "begins with several");
  ExpectSays(triggered(R"(["<f", "<g"])"), "structures/triggers[1] begins no tag");
  ExpectSays(triggered(R"([""])"),
             "structures/triggers must be a list of strings that are not empty");
  ExpectSays(triggered(R"(["<f"])", R"({"type": "int"})"),
             "format/tags[0]/content/json_schema: #/type: \"int\" is no type");
  ExpectSays(of(R"({"type": "repeat", "min": 3, "max": 2,
                    "content": {"type": "const_string", "value": "a"}})"),
             "format/min is above max");
  ExpectSays(of(R"({"type": "sequence", "elements": [{"type": "regex", "pattern": "a(?=b)c"
}]
})"),
             "format/elements[0]/pattern, character 2: ");
  ExpectSays(of(R"({"type": "grammar", "grammar": "root ::= \"\\ud800\""})"), "format/grammar: ");
  ExpectSays(of(R"({"type": "sequence", "elements": [{"type": "regex", "pattern": "a"},
                    {"type": "grammar", "grammar": "root ::= "}]})"),
             "format/elements[1]/grammar: the grammar cannot be compiled: line 1, column 10: ");
  ExpectSays(of(R"({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ""})"),
             "format/end must not be empty");
  ExpectSays(of(R"({"type": "tag", "begin": "", "end": "", "content": {"type": "sequence",
                    "elements": [{"type": "any_text"}]}})"),
             "the structural tag cannot be compiled: ");
  ExpectSays(of(R"({"type": "any_text", "excludes": [""]})"), "format/excludes must be");
}

TEST(Refusals, ExpressionsAndGrammarsAreRefusedPlainly) {
  for (const char* pattern : {"a(?=b)", "(", "[z-a]", "a{3,1}", "\\ud800", "*", "a$b", "\\p{L}"}) {
    ExpectSays({GrammarKind::kRegex, pattern}, "the regular expression, character ");
  }
  const std::string grammar = "the grammar cannot be compiled: line 1, column ";
  for (const char* text : {"root ::= ", "root ::= missing", "root = \"a\"", "root ::= \"a",
                           "root ::= [z-a]", "root ::= (\"a\"", "root ::= \"\\q\"", "# x"}) {
    ExpectSays({GrammarKind::kEbnf, text}, grammar);
  }
  for (const char* text : {"root ::= \"\\ud800\"", "root ::= [\\U0000DFFF]"}) {
    ExpectSays({GrammarKind::kEbnf, text}, "the grammar names half of a character");
  }
  for (const char* text : {R"(root ::= "\U00110000")", R"(root ::= [\x110000])",
                           R"(root ::= "\x41bbbbbbbbbbbbbbbbbbbbbbb")"}) {
    ExpectSays({GrammarKind::kEbnf, text}, ": the last character is \\U0010ffff");
  }
  ExpectSays({GrammarKind::kEbnf, R"(root ::= "\xd800")"}, "half of a character, \\xd800, which");
  ExpectSays({GrammarKind::kEbnf, "root ::= root"},
             "no token of the vocabulary can begin an answer");
}

TEST(Refusals, SayHowToMendAGrammar) {
  const auto says = [](const char* text, const std::string& part) {
    ExpectSays({GrammarKind::kEbnf, text}, part);
  };
  says("root ::= missing", "\"missing\" is not defined; texts stand in double quotes");
  says("a ::= \"b\"", "an answer begins with the rule root");
  says("root: \"a\"", "rules are written name ::= ...");
  says("root ::= ü", "Unexpected character: ü; rules");
  says("root ::= [\\é]", "Invalid escape sequence \\é; ");
  says("root ::= \"\\u{1f600}\"", "a character is written");
  says("root ::= \"a\"**", "parentheses");
  says("root ::= \"a\" |", "an empty text is written \"\"");
  says("root ::= \"a\"{,3}", "counts are written {2}, {2,} or {2,5}");
  says("root ::= [\\d]", "write [0-9]");
  says("root ::= \"a\" (= \"b\")", "(= is not known here");
  says("root ::= \"b\" x\nx ::= x \"c\"", "behind which no token can go on");
  says("root ::= \"b\" Regex(\"\\\"\", json_string=true)", "the pattern of Regex");
}

// Of numbers in comments nothing is said.
TEST(Refusals, AreOfNoComment) {
  const auto compile = MakeXgrammarCompile(ByteVocabulary());
  for (const char* text : {"# \\xdeadbeef1\nroot ::= \"a\"", "root ::= \"a\" # \\ud800"}) {
    const GrammarSpec spec{GrammarKind::kEbnf, text};
    EXPECT_TRUE(CheckGrammar(spec).ok() && compile(spec).ok()) << text;
  }
  ExpectSays({GrammarKind::kEbnf, "root ::= [#\"\\ud800]"}, "half of a character");
  ExpectSays({GrammarKind::kEbnf, "root ::= \"#\\ud800\""}, "half of a character");
}

// What programs escape without need is a character, however large the pattern.
TEST(Refusals, AreOfNoHarmlessEscape) {
  const auto compile = MakeXgrammarCompile(ByteVocabulary());
  const std::string many = "(c?){0,25}";
  for (const char* text : {R"(a\ b)", R"(\#\@\_\é)", "]", "a]"}) {
    for (const std::string& pattern : {std::string(text), many + text}) {
      EXPECT_TRUE(compile({GrammarKind::kRegex, pattern}).ok()) << pattern;
    }
  }
  EXPECT_TRUE(compile({GrammarKind::kEbnf, "root ::= Regex(\"a]\")"}).ok());
}

TEST(Refusals, WhatACompilerSaysOfItselfIsLeftOut) {
  EXPECT_EQ(
      PlainSentence(GrammarKind::kJsonSchema, "Check failed: (a(b) <= c) is false: It is large."),
      "the schema cannot be compiled: It is large");
  EXPECT_EQ(
      PlainSentence(GrammarKind::kRegex, "EBNF parser error at line 1, column 11: Bad\nclass"),
      "the regular expression cannot be compiled: Bad class");
  EXPECT_EQ(
      PlainSentence(GrammarKind::kCalls, "Internal check failed: (x) is false: "),
      "the structural tag cannot be compiled: it says something that answers cannot be held to");
  EXPECT_EQ(PlainSentence(GrammarKind::kEbnf, "/a/b.cc:12: no"),
            "the grammar cannot be compiled: it says something that answers cannot be held to");
}

}  // namespace
}  // namespace fathom
