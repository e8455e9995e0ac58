#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fathom {
namespace {

using Texts = std::vector<std::string>;

Texts WordsOf(const PreTokenizer& pre_tokenizer, std::string_view text) {
  PreTokenizer::Words words(pre_tokenizer);
  words.Begin(text);
  Texts texts;
  for (std::string_view word; words.Next(&word);) texts.emplace_back(word);
  EXPECT_TRUE(words.status().ok()) << words.status().ToString();
  return texts;
}

Texts SplitBy(std::string_view pattern, SplitBehavior behavior, bool inverted,
              std::string_view text) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.AddSplit(Regex::Compile(pattern).value(), behavior, inverted);
  return WordsOf(pre_tokenizer, text);
}

// The example of Hugging Face's documentation.
TEST(PreTokenizer, BehavioursOfMatches) {
  const auto split = [](SplitBehavior behavior) {
    return SplitBy("-", behavior, false, "the-final--countdown");
  };
  EXPECT_EQ(split(SplitBehavior::kRemoved), (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::kIsolated), (Texts{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithPrevious), (Texts{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithNext), (Texts{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split(SplitBehavior::kContiguous), (Texts{"the", "-", "final", "--", "countdown"}));
}

TEST(PreTokenizer, InvertedSwapsMatchesAndTheRest) {
  EXPECT_EQ(SplitBy("[a-z]+", SplitBehavior::kRemoved, true, "12ab,cd3"), (Texts{"ab", "cd"}));
  EXPECT_EQ(SplitBy("[a-z]+", SplitBehavior::kMergedWithPrevious, true, "12ab,cd3"),
            (Texts{"12", "ab,", "cd3"}));
}

TEST(PreTokenizer, EachStepSeesOnePieceAtATime) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.AddSplit(Regex::Compile("x").value(), SplitBehavior::kRemoved, false);
  pre_tokenizer.AddSplit(Regex::Compile("a$|^b").value(), SplitBehavior::kIsolated, false);
  EXPECT_EQ(WordsOf(pre_tokenizer, "aaxbbx"), (Texts{"a", "a", "b", "b"}));
}

TEST(PreTokenizer, PrefixSpaceUnlessThereIsOne) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.AddSplit(Regex::Compile(R"(\d+)").value(), SplitBehavior::kIsolated, false);
  pre_tokenizer.AddPrefixSpace();
  EXPECT_EQ(WordsOf(pre_tokenizer, "a1 b"), (Texts{" a", " 1", " b"}));
  EXPECT_EQ(WordsOf(pre_tokenizer, ""), Texts{});
}

// The plain algorithm: all matches of a piece, then all parts that they cut it into.
Texts Plain(std::string_view pattern, SplitBehavior behavior, bool inverted,
            std::string_view text) {
  struct Part {
    std::string text;
    bool matched;
  };
  std::vector<Part> parts;
  const Regex regex = Regex::Compile(pattern).value();
  Regex::Search search(regex);
  search.Begin(text);
  size_t at = 0;
  for (Regex::Match match; search.Next(&match); at = match.end) {
    if (at < match.begin)
      parts.push_back({std::string(text.substr(at, match.begin - at)), inverted});
    parts.push_back({std::string(text.substr(match.begin, match.end - match.begin)), !inverted});
  }
  if (at < text.size()) parts.push_back({std::string(text.substr(at)), inverted});
  Texts words;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool matched = parts[i].matched, after = i > 0 && parts[i - 1].matched;
    const bool joins =
        i > 0 && ((behavior == SplitBehavior::kContiguous && matched == after) ||
                  (behavior == SplitBehavior::kMergedWithPrevious && matched && !after) ||
                  (behavior == SplitBehavior::kMergedWithNext && !matched && after));
    if (joins) {
      words.back() += parts[i].text;
    } else {
      words.push_back(behavior == SplitBehavior::kRemoved && matched ? "" : parts[i].text);
    }
  }
  std::erase(words, "");
  return words;
}

TEST(PreTokenizer, EqualsThePlainAlgorithmOnRandomTexts) {
  using enum SplitBehavior;
  Rng rng(3);
  const char* const letters[] = {"-", "-", "a", "b", "1", " ", "é", "中"};
  const char* const patterns[] = {"-", "-|a*", "(?=a)", "[a-b]+", R"(\d|\s+(?!\S))", "x"};
  for (const uint32_t most : {6u, 60u, 6000u}) {
    for (int round = 0; round < (most < 1000 ? 100 : 3); ++round) {
      std::string text;
      for (uint32_t size = rng.Below(most); size > 0; --size) text += letters[rng.Below(8)];
      for (const SplitBehavior behavior :
           {kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous}) {
        for (const bool inverted : {false, true}) {
          const std::string_view first = patterns[rng.Below(6)], second = patterns[rng.Below(6)];
          PreTokenizer pre_tokenizer;
          pre_tokenizer.AddSplit(Regex::Compile(first).value(), behavior, inverted);
          pre_tokenizer.AddSplit(Regex::Compile(second).value(), behavior, !inverted);
          Texts expected;
          for (const std::string& piece : Plain(first, behavior, inverted, text)) {
            for (std::string& word : Plain(second, behavior, !inverted, piece)) {
              expected.push_back(std::move(word));
            }
          }
          ASSERT_EQ(WordsOf(pre_tokenizer, text), expected)
              << first << " " << second << " " << text;
        }
      }
    }
  }
}

// What was left of a text that was not walked to its end is no part of the next.
TEST(PreTokenizer, ATextMayBeLeftInItsMiddle) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.AddSplit(Regex::Compile(" ").value(), SplitBehavior::kRemoved, false);
  pre_tokenizer.AddSplit(Regex::Compile("-").value(), SplitBehavior::kMergedWithNext, false);
  PreTokenizer::Words words(pre_tokenizer);
  std::string_view word;
  words.Begin("a-b c");
  ASSERT_TRUE(words.Next(&word));
  words.Begin("x y");
  ASSERT_TRUE(words.Next(&word));
  EXPECT_EQ(word, "x");
  ASSERT_TRUE(words.Next(&word));
  EXPECT_EQ(word, "y");
  EXPECT_FALSE(words.Next(&word));
}

}  // namespace
}  // namespace fathom
