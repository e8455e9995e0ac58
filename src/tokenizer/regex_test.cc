#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tokenizer/regex_syntax.h"

namespace fathom {
namespace {

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  const Result<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok()) return {regex.status().ToString()};
  Regex::Search search(*regex);
  search.Begin(text);
  std::vector<std::string> texts;
  for (Regex::Match match; search.Next(&match);) {
    texts.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  if (!search.status().ok()) return {search.status().ToString()};
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Regex, FindsAllWithoutOverlap) {
  EXPECT_EQ(Matches(R"(\p{N}{1,3})", "1234567 x 89"), (Texts{"123", "456", "7", "89"}));
  EXPECT_EQ(Matches("[一-龥]+", "a中文b字"), (Texts{"中文", "字"}));
  EXPECT_EQ(Matches("x", ""), Texts{});
}

TEST(RegexErrors, QuoteAPatternInShort) {
  const std::string filler(100'000, 'x');
  for (const std::string& bad :
       {"(" + filler, filler + "(", "[z-a]" + filler, filler + "[", filler + R"(\Q)",
        filler + R"(\p{Nonsense})", "(?P<a>" + filler + ")"}) {
    const Result<Regex> regex = Regex::Compile(bad);
    if (regex.ok()) continue;
    EXPECT_LT(regex.status().message().size(), 500u) << regex.status().message().substr(0, 80);
  }
  EXPECT_FALSE(Regex::Compile("(" + filler).ok());
}

TEST(Regex, EmptyMatchesNeverFollowAMatch) {
  EXPECT_EQ(Matches("x*", "axxb"), (Texts{"", "xx", ""}));
  EXPECT_EQ(Matches("(?=é)", "éé"), (Texts{"", ""}));
}

TEST(Regex, ClassesAreThoseOfUnicode) {
  // U+180E was white space once: PCRE2's own \s still has it.
  EXPECT_EQ(Matches(R"(\s)", "\u180e\u00a0\u3000\u0085\u200b"),
            (Texts{"\u00a0", "\u3000", "\u0085"}));
  EXPECT_EQ(Matches(R"([^\s]+)", "a\u00a0b"), (Texts{"a", "b"}));
  // Marks are word characters, and so are letter numbers; PCRE2's own \w has no marks.
  EXPECT_EQ(Matches(R"(\w+)", "e\u0301x_9-Ⅷ"), (Texts{"e\u0301x_9", "Ⅷ"}));
  EXPECT_EQ(Matches(R"(\W)", "a-b"), Texts{"-"});
  EXPECT_EQ(Matches(R"(\d+)", "3٣²"), Texts{"3٣"});
  // Script, not Script_Extensions: U+30FC is Common, though Katakana uses it.
  EXPECT_EQ(Matches(R"(\p{Katakana}+)", "カー"), Texts{"カ"});
}

TEST(Regex, LinesAreRubys) {
  EXPECT_EQ(Matches("^.", "a\nbc"), (Texts{"a", "b"}));
  EXPECT_EQ(Matches(".$", "ab\r\nc"), (Texts{"\r", "c"}));
  EXPECT_EQ(Matches(R"(\A.|.\z)", "abc"), (Texts{"a", "c"}));
}

TEST(Regex, OptionsInGroups) {
  EXPECT_EQ(Matches("(?i:'s|'ll)", "It'S we'll"), (Texts{"'S", "'ll"}));
  EXPECT_EQ(Matches(R"(\u4e2d)", "中文"), Texts{"中"});
}

TEST(Regex, RefusesWhatMeansSomethingElse) {
  for (const char* pattern : {R"(\h)",
                              R"(\b)",
                              R"(\R)",
                              R"(\X)",
                              R"(\K)",
                              R"(\G)",
                              R"((a)\1)",
                              R"(\pL)",
                              R"(\p{Alpha)",
                              R"([a[bc]])",
                              R"([[:alpha:]])",
                              R"([a-z&&[^aeiou]])",
                              R"([]a])",
                              R"([\W])",
                              "(?i)a",
                              "(?m:.)",
                              "(?<name>a)",
                              "(?~a)",
                              "(*ANYCRLF)a",
                              "a{,3}",
                              "a{2}+",
                              "a{2}?",
                              "a{x",
                              R"(\u12)",
                              R"(\p{1x})",
                              R"(\xff)",
                              R"(\C)",
                              R"(\Qa\E)"}) {
    const Result<Regex> regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_NE(regex.status().message().find(pattern), std::string::npos)
        << regex.status().message();
  }
  for (const char* pattern : {"(a", "a)", "*a", "[a", R"(\p{Nonesuch})", "a\\"}) {
    const Result<Regex> regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kInvalidArgument) << regex.status().message();
  }
}

TEST(Regex, WorkIsBounded) {
  const Texts matches = Matches(R"((a|aa)+\z)", std::string(60, 'a') + "b");
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_NE(matches[0].find("match limit"), std::string::npos) << matches[0];
  EXPECT_NE(matches[0].find("shorter text"), std::string::npos) << matches[0];
  // A run of one class is no backtracking, however long.
  EXPECT_EQ(Matches(R"(\s+(?!\S)|\s+)", std::string(1 << 20, ' ') + "x").size(), 2u);
}

// At each place the pattern reads all that is left, in vain: hours for the whole text.
TEST(Regex, LongSearchesAreInterrupted) {
  const Regex regex = Regex::Compile("a+b|é").value();
  const std::string text(8 << 20, 'a');
  const auto began = std::chrono::steady_clock::now();
  const Interrupt interrupt(std::chrono::milliseconds(100));
  Regex::Search search(regex, {.interrupt = &interrupt});
  search.Begin(text);
  Regex::Match match;
  EXPECT_FALSE(search.Next(&match));
  const Status& status = search.status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(2));
}

TEST(Regex, LongTextsMatchAsShortOnes) {
  // Where a search is taken up again is the begin of a character, and the end is looked at too.
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "é中";
  EXPECT_EQ(Matches("x", text), Texts{});
  EXPECT_EQ(Matches("[^é中]", text), Texts{});
  EXPECT_EQ(Matches("[a-z]", text + "x" + text + "y"), (Texts{"x", "y"}));
  EXPECT_EQ(Matches(R"(\z)", text), Texts{""});
  EXPECT_EQ(Matches("(?<=中)x|中(?=y)", text + "x" + text + "y"), (Texts{"x", "中"}));
  EXPECT_EQ(Matches(".", text).size(), 40'000u);
}

TEST(Regex, EscapedTextMatchesItself) {
  const std::string text = "a.b*c[d]{e}(f)\\|^$+?-é中\n #";
  EXPECT_EQ(Matches(EscapeRegex(text), "x" + text + "y"), Texts{text});
}

}  // namespace
}  // namespace fathom
