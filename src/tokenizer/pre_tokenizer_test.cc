#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

using Texts = std::vector<std::string>;

Texts WordsOf(const PreTokenizer& pre_tokenizer, std::string_view text) {
  PreTokenizer::Words words;
  const Status status = pre_tokenizer.Split(text, &words);
  if (!status.ok()) return {status.ToString()};
  return {words.pieces.begin(), words.pieces.end()};
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

}  // namespace
}  // namespace fathom
