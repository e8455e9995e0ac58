// Which grammars are regular expressions, and which.
#include "grammar/ebnf_pattern.h"

#include <gtest/gtest.h>

#include <string>

#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

std::string Pattern(const std::string& grammar) {
  return PatternOfEbnf(grammar).value_or("none");
}

TEST(EbnfPattern, RulesTakeThePlaceOfTheirNames) {
  EXPECT_EQ(Pattern("root ::= (word \" \")* word # words\n# and no more\nword ::= [a-z]+ | \"-\""),
            "((([a-z]+|(\\-))( ))*([a-z]+|(\\-)))");
  EXPECT_EQ(Pattern("a-b ::= \"\\n\\\"\"{2, 3}\nroot ::= a-b?"), "(((\\n\"){2,3})?)");
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
                              "root ::= \"\\x41\"",
                              "root ::= [\\u00e9]",
                              "root ::= []",
                              "root ::= \"open",
                              "root ::= [open",
                              "root ::= \"a\"{x}",
                              "root ::= a = b",
                              "::= \"a\"",
                              "root ::= ::= \"a\"",
                              "root ::= \"a\" (=\"b\")",
                              "root ::= \"\\",
                              "root ::= [\\"}) {
    EXPECT_EQ(Pattern(grammar), "none") << grammar;
  }
  std::string doubling = "root ::= r20\nr0 ::= \"a\"";
  for (int i = 1; i <= 20; ++i) {
    doubling +=
        "\nr" + std::to_string(i) + " ::= r" + std::to_string(i - 1) + " r" + std::to_string(i - 1);
  }
  EXPECT_EQ(Pattern(doubling), "none");
}

}  // namespace
}  // namespace fathom
