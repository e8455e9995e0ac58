#include "grammar/pattern_syntax.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <utility>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

TEST(PatternSyntax, PatternsThatPass) {
  for (const char* pattern :
       {"^[a-z]{1,3}$", "(?i)^a|b$", "(?:a|b)*?c+?", "(?<year>\\d{4})-(?P<month>\\d{2})", "a{2,}",
        "[\\w.\\-+]+@[^@\\s]+", "\\u00e9\\x41\\u{1f600}\\cA?", "", "a||b", "()", "é+[ä-ü]",
        "[\\d-x]", "[a-]", "}", "]", "a|\"", "[\\n\\t ]", "\\/\\-\\_\\ "}) {
    const Status status = CheckPatternSyntax(pattern, "it", PatternUse::kJsonString);
    EXPECT_TRUE(status.ok()) << pattern << ": " << status.message();
  }
}

TEST(PatternSyntax, PlacesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"a(?=b)", "it, character 2: answers cannot be held to (?=...), which looks around"},
      {"é(?<!b)", "it, character 2: "},
      {"(?m)a", "character 1: of flags there is (?i) alone"},
      {"a(", "character 2: this parenthesis is not closed"},
      {"a)", "character 2: this ) closes no parenthesis"},
      {"[a", "character 1: this class is not closed"},
      {"[]", "character 1: a class without characters"},
      {"[^]", "a class without characters"},
      {"[z-a]", "character 2: a range goes"},
      {"[a-\\d]", "character 2: a range goes"},
      {"a{3,1}", "character 2: the lower count is above"},
      {"a{,3}", "character 2: a count is written"},
      {"a{x}", "a count is written"},
      {"a{2", "a count is written"},
      {"a{1, 2}", "a count is written"},
      {"*a", "character 1: * has nothing to repeat"},
      {"(+)", "has nothing to repeat"},
      {"^*", "^ cannot be repeated"},
      {"a**", "character 3: it repeats a repetition"},
      {"a++", "repeats a repetition"},
      {"a{2}{3}", "repeats a repetition"},
      {"a^b", "character 2: ^ may stand at the beginning alone"},
      {"^a$|^b$", "character 3: $ may stand at the end alone"},
      {"\\bword", "answers cannot be held to \\b, which looks around"},
      {"(a)\\1", "character 4: answers cannot be held to \\1, which refers back"},
      {"\\p{L}", "\\p, which names a class of Unicode"},
      {"\\q", "\\q, which is not known"},
      {"a\\", "nothing is behind the backslash"},
      {"\\u12", "character 1: a character is written"},
      {"\\x1", "a character is written"},
      {"\\u{110000}", "a character is written"},
      {"\\ud83d\\ude00", "character 1: U+D83D is half of a character"},
      {"[\\ud800-\\udfff]", "character 2: U+D800 is half of a character"},
      {"(?<>a)", "a name of a group"},
      {"\\c1", "\\c is followed by a letter"},
  };
  for (const auto& [pattern, says] : cases) {
    for (const PatternUse use : {PatternUse::kText, PatternUse::kJsonString}) {
      const Status status = CheckPatternSyntax(pattern, "it", use);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << pattern;
      EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    }
  }
}

// JSON writes these characters with a backslash, which nothing here puts in.
TEST(PatternSyntax, WhatNoJsonStringMatches) {
  for (const char* pattern : {"\"", "a\\\\b", "\\n", "(\\t|\\x01)+", "\\cA", "[\"\\\\]",
                              "[^\\s\\S]", "[\\n\\r]{1,3}", "x\\u0000", "a|b\"|\\n\\n"}) {
    EXPECT_TRUE(CheckPatternSyntax(pattern, "it", PatternUse::kText).ok()) << pattern;
    const Status status = CheckPatternSyntax(pattern, "it", PatternUse::kJsonString);
    EXPECT_EQ(status.ok(), std::string(pattern).starts_with("a|")) << pattern;
  }
  for (const char* pattern :
       {"(\\n)*", "a\\n?", "\\n{0,2}", "[\\n ]", "\\s", "[^a]", "\\n|x", "."}) {
    const Status status = CheckPatternSyntax(pattern, "it", PatternUse::kJsonString);
    EXPECT_TRUE(status.ok()) << pattern << ": " << status.message();
  }
}

TEST(PatternSyntax, Ascii) {
  EXPECT_EQ(AsciiPattern("^[a-z]\\d$"), "^[a-z]\\d$");
  EXPECT_EQ(AsciiPattern("é[ä-ü]\\é\U0001f600"), "\\u{e9}[\\u{e4}-\\u{fc}]\\u{e9}\\u{1f600}");
  EXPECT_EQ(AsciiPattern("a][]]\\]"), "a\\][]\\]\\]");
  EXPECT_TRUE(AsciiPattern("\\S").starts_with("[\\x00-\\x08"));
  EXPECT_TRUE(AsciiPattern("[x\\W]").starts_with("[x\\x00-/"));
  EXPECT_EQ(AsciiPattern("\t\\\n\x7f~"), "\\u{9}\\u{a}\\u{7f}~");
}

// What comes out is JSON: each string is taken that matches and is plain, and none that is not.
TEST(PatternSyntax, StringsOfPatternsAreJson) {
  const auto compile = MakeXgrammarCompile(ByteVocabulary());
  const auto takes = [&](std::string_view pattern, std::string_view text) {
    const boost::json::value schema = {{"type", "string"}, {"pattern", pattern}};
    const GrammarSpec spec{GrammarKind::kJsonSchema, boost::json::serialize(schema)};
    const Status checked = CheckGrammar(spec);
    EXPECT_TRUE(checked.ok()) << checked.message();
    const auto grammar = compile(spec);
    EXPECT_TRUE(grammar.ok()) << pattern << ": " << grammar.status().message();
    return grammar.ok() && TakesBytes(**grammar, fmt::format("\"{}\"", text));
  };
  for (const char* pattern : {"é.", "é[^b]", "[é\\S].", "é\\D", ".]", "é|..", "(?i)É."}) {
    const std::string begin = std::string(pattern) == ".]" ? "x" : "é";
    for (const char* bad : {"\"", "\n", "\\", "\\n", "\x01"}) {
      EXPECT_FALSE(takes(pattern, begin + bad)) << pattern << bad;
    }
    if (begin == "é" && !std::string(pattern).starts_with("(?i)")) {
      EXPECT_TRUE(takes(pattern, "éx")) << pattern;
    }
  }
  EXPECT_TRUE(takes(".]", "x]"));
  EXPECT_TRUE(takes("[^é]", "e") && !takes("[^é]", "é"));
  // What is white space for Python or for ECMA-262, and is no letter for one of them.
  EXPECT_TRUE(takes("\\S", "é") && takes("[\\S]", "x") && takes("\\W", "-"));
  for (const char* space : {" ", "\u00a0", "\u2003", "\u3000", "\ufeff", "\u0085"}) {
    EXPECT_FALSE(takes("\\S", space) || takes("[\\S]", space));
  }
  EXPECT_FALSE(takes("\\W", "é") || takes("[\\W]", "x"));
  // A class that leaves such out leaves out what either takes for it.
  for (const char* pattern : {"[^\\W]", "[^\\W\\d_]", "[^\\W_]", "[^\\S]|a", "[^x\\w]|a"}) {
    EXPECT_TRUE(takes(pattern, "a"));
    for (const char* other : {"é", "€", "×", "«", "\U0001f600", "\u0085", "\ufeff"}) {
      EXPECT_FALSE(takes(pattern, other)) << pattern << " " << other;
    }
  }
  EXPECT_FALSE(takes("[^x]\\W", "aé"));
  for (const char* pattern : {"[\\s\\S]", "[\\W\\w]", "[\\d\\D]"}) {
    for (const char* any : {"a", "-", "é", "\u00a0", "\u0085", "中"})
      EXPECT_TRUE(takes(pattern, any));
    EXPECT_FALSE(takes(pattern, "\""));
  }
  // A dash behind a shorthand is no range.
  for (const char* pattern : {"[\\s-.]", "[\\s-]|\\.", "[x\\s-.(]", "[^\\w-.]|[-. ]"}) {
    for (const char* one : {"-", ".", " "}) EXPECT_TRUE(takes(pattern, one)) << pattern << one;
    EXPECT_FALSE(takes(pattern, ",") && takes(pattern, "a")) << pattern;
  }
  EXPECT_TRUE(takes("[^\\s-.]", "a"));
  EXPECT_FALSE(takes("[^\\s-.]", "-") || takes("[^\\s-.]", ".") || takes("[\\s-.]", "!"));
  EXPECT_TRUE(takes("[^\\S]", "\u3000") && takes("[^\\w]", "-") && takes("[^\\s]", "é"));
  EXPECT_FALSE(takes("[^\\s]", "\u3000") || takes("[^\\s]", "\u0085"));
}

}  // namespace
}  // namespace fathom
