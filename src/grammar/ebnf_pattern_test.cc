// Which grammars are regular expressions, and which.
#include "grammar/ebnf_pattern.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_bytes.h"
#include "base/token_mask.h"
#include "grammar/byte_vocabulary.h"
#include "grammar/compile_limit.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

std::string Pattern(const std::string& grammar) {
  return PatternOfEbnf(grammar).value_or("none");
}

TEST(EbnfPattern, RulesTakeThePlaceOfTheirNames) {
  EXPECT_EQ(Pattern("root ::= (word \" \")* word # words\n# and no more\nword ::= [a-z]+ | \"-\""),
            "((([a-z]+|(\\-))( ))*([a-z]+|(\\-)))");
  EXPECT_EQ(Pattern("root ::= \"a\" # b\r | \"c\""), "((a)|(c))");
  EXPECT_EQ(Pattern("a-b ::= \"\\n\\\"\"{2, 3}\nroot ::= a-b?"), "(((\\n\"){2,3})?)");
}

TEST(EbnfPattern, CharactersHaveNumbers) {
  EXPECT_EQ(Pattern("root ::= \"\\x41-\" [^\\x00-\\x1f\\u00e9]"),
            "((\\x41\\-)[^\\x00-\\x1f\\u00e9])");
  EXPECT_EQ(Pattern("root ::= \"\\u00e9a\""), "((\\u00e9a))");
}

TEST(EbnfPattern, RulesWithoutRecursionAreThatOfOthersWithIt) {
  EXPECT_EQ(EbnfWithPatterns(
                "root ::= value\nvalue ::= \"[\" (value (ws \",\" value)*)? \"]\" | str # or\n"
                "str ::= \"\\\"\" [^\"\\\\]* \"\\\"\" ws\nws ::= [ \\n]* | \"\"\nother ::= \"x\""),
            "root ::= value\n"
            "value ::= \"[\" ( value ( ws \",\" value ) * ) ? \"]\" | str\n"
            "str ::= Regex(\"((\\\")[^\\\"\\\\\\\\]*(\\\")([ \\\\n]*|()))\")\n"
            "ws ::= Regex(\"([ \\\\n]*|())\")\n");
  for (const char* grammar :
       {"root ::= \"x\"", "root ::= \"(\" root \")\" | \"x\"",
        "root ::= root missing | a\na ::= \"x\"", "root ::= root a | (=a)\na ::= \"x\""}) {
    EXPECT_EQ(EbnfWithPatterns(grammar), std::nullopt) << grammar;
  }
}

TEST(EbnfPattern, WhatHasNoneIsLeftAlone) {
  for (const char* grammar : {"",
                              "root ::= \"(\" root \")\" | \"x\"",
                              "root ::= a\na ::= b\nb ::= \"x\" a | \"\"",
                              "root ::= missing",
                              "other ::= \"a\"",
                              "\"a\"",
                              "root ::= \"a\"\nroot ::= \"b\"",
                              "root ::= TagDispatch((\"a\", b))\nb ::= \"b\"",
                              "root ::= \"\\x041\"",
                              "root ::= [\\x4]",
                              "root ::= \"\\u00\"",
                              "root ::= []",
                              "root ::= \"open",
                              "root ::= [open",
                              "root ::= \"a\"{x}",
                              "root ::= a = b",
                              "::= \"a\"",
                              "root ::= ::= \"a\"",
                              "root ::= \"a\" (=\"b\")",
                              "root ::= \"\\",
                              "root ::= [\\",
                              "root ::= \"a\"{2 3}",
                              "root ::= [a\r]",
                              "root ::= \"a\rb\"",
                              "root ::= Regex (\"b\")\nRegex ::= \"a\"",
                              "root ::= Token\nToken ::= \"a\"",
                              "root ::= true\ntrue ::= \"a\"",
                              "root ::= 1a\n1a ::= \"a\"",
                              "root ::= \"a\" b ::= \"c\"",
                              "root ::= b b ::= \"c\""}) {
    EXPECT_EQ(Pattern(grammar), "none") << grammar;
  }
  std::string doubling = "root ::= r20\nr0 ::= \"a\"";
  for (int i = 1; i <= 20; ++i) {
    doubling +=
        "\nr" + std::to_string(i) + " ::= r" + std::to_string(i - 1) + " r" + std::to_string(i - 1);
  }
  EXPECT_EQ(Pattern(doubling), "none");
}

// Each rule was put together again wherever one of 5000 named it: 9 s, with no look at who waits.
TEST(EbnfPattern, IsSoonFound) {
  std::string chain = "root ::= \"(\" root \")\" | r0";
  for (int i = 0; i < 4000; ++i) chain += fmt::format("\nr{} ::= r{}", i, i + 1);
  chain += "\nr4000 ::= \"x\"";
  int looks = 0;
  const int64_t begin = ThreadNs();
  {
    const CompileLimit limit(std::chrono::hours(1), size_t{1} << 40, [&looks] {
      ++looks;
      return false;
    });
    EXPECT_NE(EbnfWithPatterns(chain), std::nullopt);
  }
  EXPECT_LT(ThreadNs() - begin, 2'000'000'000);
  EXPECT_GT(looks, 4000);
}

// Rules whose patterns together are too large stay rules.
TEST(EbnfPattern, TakesLittleMemory) {
  std::string chain = "root ::= \"(\" root \")\" | r0";
  for (int i = 0; i < 2000; ++i) chain += fmt::format("\nr{} ::= r{}", i, i + 1);
  chain += "\nr2000 ::= \"" + std::string(4000, 'x') + "\"";
  const int64_t before = ThreadBytes();
  (void)ThreadPeak();
  (void)EbnfWithPatterns(chain);
  EXPECT_LT(ThreadPeak() - before, int64_t{16} << 20);
}

// With a lexeme that only xgrammar knows a grammar stays as it is.
TEST(EbnfPattern, PatternsInAGrammarChangeNoAnswer) {
  const std::string json = R"x(root ::= value
value ::= "{" ws (pair ("," ws pair)*)? "}" ws | "[" ws (value ("," ws value)*)? "]" ws | str | num
pair ::= str ":" ws value
str ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\bn] | "u" [0-9a-f]{2}))* "\"" ws
num ::= "-"? ("0" | [1-9] [0-9]{0,2}) ("." [0-9]+)? ws
ws ::= "" | " " | "\n" [ \t]{0,2})x";
  const std::string sums = R"x(root ::= sum
sum ::= term (ws [-+] ws term)*
term ::= name | "(" ws sum ws ")" | name "[" sum "]"
name ::= [a-b] [a-b0]* ("'" | "''")?
ws ::= [ \n]*)x";
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  const auto grammar = [&](const std::string& text) {
    const auto made = compile({.kind = GrammarKind::kEbnf, .text = text});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return *made;
  };
  for (const auto& text : {json, sums}) {
    ASSERT_NE(EbnfWithPatterns(text), std::nullopt);
    const std::string as_it_is = text + "\nnever ::= \"\\x041\"";
    ASSERT_EQ(EbnfWithPatterns(as_it_is), std::nullopt);
    const auto with = grammar(text), without = grammar(as_it_is);
    const std::string bytes = text == json ? "{}[]\",: \n\\u0a1-." : "ab0'()[]+- \n";
    Rng rng(/*seed=*/0);
    std::vector<uint32_t> words(MaskWords(257)), others(words.size());
    int whole = 0;
    for (int i = 0; i < 400; ++i) {
      const auto state = with->Start().value(), other = without->Start().value();
      for (int at = 0; at < 30; ++at) {
        ASSERT_TRUE(state->FillMask(words).ok() && other->FillMask(others).ok());
        ASSERT_EQ(words, others);
        const bool end = (words[8] & 1) != 0 && rng.Below(3) == 0;
        const TokenId byte{
            static_cast<uint8_t>(bytes[rng.Below(static_cast<uint32_t>(bytes.size()))])};
        const bool taken = state->Accept(end ? kByteEos : byte).value();
        ASSERT_EQ(taken, other->Accept(end ? kByteEos : byte).value());
        if (taken && end) break;
      }
      whole += static_cast<int>(state->terminated());
    }
    EXPECT_GT(whole, 20);
  }
}

}  // namespace
}  // namespace fathom
