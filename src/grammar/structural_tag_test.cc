// Which structural tags are taken, and what they become.
#include "grammar/structural_tag.h"

#include <gtest/gtest.h>

#include <string>

#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

std::string Tag(const std::string& format) {
  return R"({"type": "structural_tag", "format": )" + format + "}";
}

std::string Refusal(const std::string& tag) {
  const Result<std::string> read = ReadStructuralTag(tag);
  if (!read.ok()) return read.status().message();
  const Status status = CheckStructuralTag(*read);
  return status.ok() ? "none" : status.message();
}

TEST(StructuralTag, BothFormsBecomeOne) {
  const std::string older = ReadStructuralTag(R"({"type": "structural_tag", "triggers": ["<f"],
      "structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}]})")
                                .value();
  EXPECT_EQ(older, ReadStructuralTag(Tag(R"({"type": "triggered_tags", "triggers": ["<f"],
      "tags": [{"type": "tag", "begin": "<f=a>",
                "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                "end": "</f>"}]})"))
                       .value());
  EXPECT_NE(older.find(R"("max_whitespace_cnt":32)"), std::string::npos) << older;
  // It says what it was, so that reading it again changes nothing but that.
  EXPECT_EQ(Refusal(Tag(R"({"type": "or", "elements": [{"type": "const_string", "value": "a"},
      {"type": "repeat", "min": 0, "max": 3, "content": {"type": "regex", "pattern": "b"}}]})")),
            "none");
}

TEST(StructuralTag, WhatIsRefusedNamesItsPlace) {
  const auto begins = [](const std::string& tag, const std::string& with) {
    EXPECT_TRUE(Refusal(tag).starts_with(with)) << tag << ": " << Refusal(tag);
  };
  begins("x", "it must be a JSON object");
  begins("[1]", "it must be a JSON object");
  begins("{}", "it must have a format");
  begins(R"({"structures": [{"begin": "a"}], "triggers": ["a"]})", "structures[0] must have");
  begins(Tag("1"), "format must be an object");
  begins(Tag(R"({"value": "a"})"), "format/type must be one of");
  begins(Tag(R"({"type": "token", "token": 5})"), "format/type must be one of");
  begins(Tag(R"({"type": "token_triggered_tags"})"), "format/type must be one of");
  begins(Tag(R"({"type": "tag", "begin": {"type": "token", "token": 5}, "end": "",
                 "content": {"type": "any_text"}})"),
         "format/begin must be a string");
  begins(Tag(R"({"type": "sequence", "elements": [{"type": "const_string"}]})"),
         "format/elements[0]/value is required");
  begins(Tag(R"({"type": "sequence", "elements": []})"), "format/elements must be a list");
  begins(Tag(R"({"type": "star", "content": {"type": "any_text", "x": 1}})"),
         "format/content/x is not known");
  begins(Tag(R"({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"})"),
         "format/style must be");
  begins(Tag(R"({"type": "repeat", "min": 0, "max": 100000, "content": {"type": "any_text"}})"),
         "format/max must be between");
  begins(Tag(R"({"type": "triggered_tags", "triggers": [1], "tags": []})"), "format/triggers must");
  begins(Tag(R"({"type": "tags_with_separator", "separator": ",", "tags": [{"type": "regex"}]})"),
         "format/tags[0]/type must be");
  // Limits of what stands in it.
  begins(Tag(R"({"type": "json_schema", "json_schema": {"not": {}}})"), "format/json_schema: #: ");
  begins(Tag(R"({"type": "regex", "pattern": ")" + std::string(kMaxPatternBytes + 1, 'a') + "\"}"),
         "format/pattern has");
  begins(Tag(R"({"type": "grammar", "grammar": ")" + std::string(kMaxEbnfBytes + 1, 'a') + "\"}"),
         "format/grammar: the grammar");
  begins(std::string(kMaxSchemaBytes + 1, ' '), "it has");
  std::string deep = R"({"type": "any_text"})";
  for (int i = 0; i < 90; ++i) deep = R"({"type": "star", "content": )" + deep + "}";
  begins(Tag(deep), "it is nested too deeply");
  std::string wide = R"({"type": "any_text"})";
  for (int i = 0; i < 1000; ++i) wide += R"(, {"type": "any_text"})";
  begins(Tag(R"({"type": "sequence", "elements": [)" + wide + "]}"), "it has more than 1000 parts");
}

}  // namespace
}  // namespace fathom
