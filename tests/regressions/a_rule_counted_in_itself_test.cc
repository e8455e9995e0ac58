// A rule that is only itself, counted, ended the server: of what is counted its one element was
// taken in its place, without an end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

GrammarCompiler::Made Compiled(const std::string& text, GrammarKind kind = GrammarKind::kEbnf) {
  static const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const GrammarSpec spec{.kind = kind, .text = text};
  EXPECT_TRUE(CheckGrammar(spec).ok()) << text;
  return compile(spec);
}

TEST(ARuleCountedInItself, IsARule) {
  const auto maybe = Compiled("root ::= root{0,1}");
  ASSERT_TRUE(maybe.ok()) << maybe.status().message();
  EXPECT_TRUE(TakesBytes(**maybe, ""));
  EXPECT_FALSE(TakesBytes(**maybe, "a"));
  const auto none = Compiled("root ::= \"x\" | a\na ::= a{0}");
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_TRUE(TakesBytes(**none, "x"));
  const auto other = Compiled("root ::= a | \"x\"\na ::= b{2}\nb ::= a{2} | \"y\"");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_TRUE(TakesBytes(**other, "yy"));
  EXPECT_TRUE(TakesBytes(**other, "yyyyy"));
  EXPECT_FALSE(TakesBytes(**other, "y"));
}

TEST(ARuleCountedInItself, ThatNothingBeginsIsRefused) {
  const std::string endless = "root ::= a \\\"b\\\"\\na ::= a{2}";
  EXPECT_FALSE(Compiled("root ::= a \"b\"\na ::= a{2}").ok());
  EXPECT_FALSE(Compiled("root ::= a\na ::= b{2}\nb ::= a{2}").ok());
  EXPECT_FALSE(Compiled(R"({"type":"structural_tag","format":{"type":"grammar","grammar":")" +
                            endless + "\"}}",
                        GrammarKind::kStructuralTag)
                   .ok());
}

TEST(ARuleCountedInItself, MayBeBehindOthers) {
  std::string chain = "root ::= r0 \"x\"";
  for (int i = 0; i < 40; ++i) chain += fmt::format("\nr{} ::= r{}{{1}}", i, i + 1);
  const auto grammar = Compiled(chain + "\nr40 ::= \"a\" r0 | \"b\"");
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_TRUE(TakesBytes(**grammar, "aabx"));
  EXPECT_FALSE(TakesBytes(**grammar, "aax"));
}

}  // namespace
}  // namespace fathom
