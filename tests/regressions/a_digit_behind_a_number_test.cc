// In a regular expression with many repetitions, and in that of a structural tag, digits behind
// \x61 were more of the character's number: \x61a was U+061A.
#include <gtest/gtest.h>

#include <string>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

std::string Taken(const std::string& pattern, GrammarKind kind = GrammarKind::kRegex) {
  const GrammarSpec spec{.kind = kind, .text = pattern};
  EXPECT_TRUE(CheckGrammar(spec).ok()) << pattern;
  const auto grammar = MakeXgrammarCompile(ByteVocabulary())(spec);
  if (!grammar.ok()) return std::string(grammar.status().message());
  std::string taken;
  for (const char* text : {"aa", "\u061a", "b", "\x1f", "\x08", "\u01fa", "a"}) {
    if (TakesBytes(**grammar, text)) taken.append(taken.empty() ? "" : " ").append(text);
  }
  return taken;
}

TEST(ADigitBehindANumber, IsACharacter) {
  const std::string many = "(c?){0,25}";
  EXPECT_EQ(Taken(many + R"(\x61a)"), "aa");
  EXPECT_EQ(Taken(many + R"([\x1fa])"), "\x1f a");
  EXPECT_EQ(Taken(many + R"([\u001fab])"), "b \x1f a");
  EXPECT_EQ(Taken(many + R"([\x01-\x08a])"), "\x08 a");
  EXPECT_EQ(Taken(R"({"type":"structural_tag","format":{"type":"regex","pattern":"\\x61a"}})",
                  GrammarKind::kStructuralTag),
            "aa");
}

// A caret that a backslash puts first in a class made it the complement there.
TEST(ADigitBehindANumber, ACaretIsACharacter) {
  const std::string many = "(c?){0,25}";
  EXPECT_EQ(Taken(many + R"([\^a])"), "a");
  EXPECT_EQ(Taken(many + R"([\x5ea-])"), "a");
  EXPECT_EQ(Taken(R"({"type":"structural_tag","format":{"type":"regex","pattern":"[\\^a]{2}"}})",
                  GrammarKind::kStructuralTag),
            "aa");
}

TEST(ADigitBehindANumber, GroupsHaveNames) {
  EXPECT_EQ(Taken("(c?){0,25}(?P<first_1>a)(?<b2>a)"), "aa");
  EXPECT_EQ(Taken("(?P<first_1>a)(?<b2>a)"), "aa");
}

}  // namespace
}  // namespace fathom
