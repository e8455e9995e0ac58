#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "tokenizer/byte_alphabet.h"

namespace fathom {
namespace {

// The byte alphabet (id = byte), and words made by merging.
struct Model {
  Model() {
    for (int byte = 0; byte < 256; ++byte) {
      EXPECT_TRUE(vocabulary.Add(SpellByte(static_cast<uint8_t>(byte)), TokenId{byte}, true));
    }
  }
  // Adds a rule, and its result to the vocabulary if it is new.
  void Merge(const std::string& left, const std::string& right) {
    if (!vocabulary.Find(left + right)) {
      EXPECT_TRUE(vocabulary.Add(left + right, TokenId{vocabulary.size()}, true));
    }
    rules.push_back(
        {*vocabulary.Find(left), *vocabulary.Find(right), *vocabulary.Find(left + right)});
  }
  std::string Encode(std::string_view word, bool added_allowed = true, bool whole = false) const {
    Result<Bpe> bpe = Bpe::Build(vocabulary, rules, whole);
    if (!bpe.ok()) return bpe.status().ToString();
    Bpe::Scratch scratch;
    std::string shown;
    for (const TokenId id : bpe->Encode(word, added_allowed, &scratch)) {
      shown += (shown.empty() ? "" : " ") + vocabulary[id].bytes;
    }
    const size_t held = scratch.ids.capacity() * sizeof(scratch.ids[0]) +
                        scratch.ends.capacity() * sizeof(scratch.ends[0]) +
                        scratch.queue.capacity() * sizeof(scratch.queue[0]);
    EXPECT_LE(held, Bpe::kScratchBytesPerByte * std::max<size_t>(word.size(), 64));
    return shown;
  }
  Vocabulary vocabulary;
  std::vector<MergeRule> rules;
};

TEST(Bpe, MergesInOrderOfRankThenFromTheLeft) {
  Model model;
  model.Merge("b", "c");
  model.Merge("a", "b");
  model.Merge("a", "a");
  EXPECT_EQ(model.Encode("abc"), "a bc");
  EXPECT_EQ(model.Encode("abab"), "ab ab");
  EXPECT_EQ(model.Encode("aaaaa"), "aa aa a");
  EXPECT_EQ(model.Encode(""), "");
  EXPECT_EQ(model.Encode("é"), "\xC3 \xA9");
}

TEST(Bpe, OfEqualPairsTheLastCounts) {
  Model model;
  model.Merge("a", "b");
  model.Merge("b", "c");
  model.Merge("a", "b");
  EXPECT_EQ(model.Encode("abc"), "a bc");
}

TEST(Bpe, WholeWordsSkipTheRules) {
  Model model;
  model.Merge("b", "c");
  model.Merge("a", "bc");
  ASSERT_TRUE(model.vocabulary.Add("xyz", TokenId{300}, true));
  EXPECT_EQ(model.Encode("xyz"), "x y z");
  EXPECT_EQ(model.Encode("xyz", true, true), "xyz");
  EXPECT_EQ(model.Encode("xyza", true, true), "x y z a");
}

TEST(Bpe, AddedTokensOnlyWhereAllowed) {
  Model model;
  model.Merge("a", "b");
  model.Merge("ab", "c");
  model.vocabulary.MarkAdded(*model.vocabulary.Find("abc"), true);
  model.vocabulary.MarkAdded(TokenId{'x'}, true);
  for (const bool whole : {false, true}) {
    EXPECT_EQ(model.Encode("abc", true, whole), "abc");
    EXPECT_EQ(model.Encode("abc", false, whole), "ab c");
    EXPECT_EQ(model.Encode("x", false, whole), "x");  // a byte has no other token
  }
}

TEST(Bpe, RefusesAnIncompleteAlphabet) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte != 0x0A && byte != 0xF5) {  // 0xF5 is in no UTF-8 text
      ASSERT_TRUE(vocabulary.Add(SpellByte(static_cast<uint8_t>(byte)), TokenId{byte}, true));
    }
  }
  const Result<Bpe> bpe = Bpe::Build(vocabulary, {}, false);
  ASSERT_FALSE(bpe.ok());
  EXPECT_NE(bpe.status().message().find("byte 0x0A"), std::string::npos);
}

// The plain algorithm: look for the best pair, merge its leftmost occurrence, start again.
std::string Plain(const Model& model, std::string_view word) {
  std::map<std::pair<TokenId, TokenId>, size_t> ranks;
  for (size_t i = 0; i < model.rules.size(); ++i) {
    ranks[{model.rules[i].left, model.rules[i].right}] = i;
  }
  std::vector<TokenId> ids;
  for (const char c : word) ids.push_back(TokenId{static_cast<uint8_t>(c)});
  while (true) {
    size_t best = model.rules.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best) best = found->second, at = i;
    }
    if (best == model.rules.size()) break;
    ids[at] = model.rules[best].merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::string shown;
  for (const TokenId id : ids) shown += (shown.empty() ? "" : " ") + model.vocabulary[id].bytes;
  return shown;
}

TEST(Bpe, EqualsThePlainAlgorithmOnRandomRules) {
  Rng rng(7);
  for (int round = 0; round < 30; ++round) {
    Model model;
    std::vector<std::string> words = {"a", "b", "c"};
    while (words.size() < 40) {
      const std::string left = words[rng.Below(words.size())],
                        right = words[rng.Below(words.size())];
      if (left.size() + right.size() > 12 || model.vocabulary.Find(left + right)) continue;
      model.Merge(left, right);
      words.push_back(left + right);
    }
    for (int i = 0; i < 50; ++i) {
      std::string word;
      for (uint32_t size = rng.Below(i < 45 ? 60 : 600); word.size() < size;)
        word += "abc"[rng.Below(3)];
      ASSERT_EQ(model.Encode(word), Plain(model, word)) << word;
    }
  }
}

// Each merge makes two candidates stale and adds two: without dropping any, they would be half as
// many again as the word's bytes.
TEST(Bpe, StaleCandidatesTakeNoRoom) {
  Model model;
  model.Merge("a", "b");
  model.Merge("b", "a");
  model.Merge("ab", "a");
  model.Merge("ab", "ab");
  std::string word;
  while (word.size() < 1000) word += "ab";
  EXPECT_EQ(model.Encode(word), Plain(model, word));
}

TEST(Bpe, ALongWordIsNoSquare) {
  Model model;
  model.Merge("a", "a");
  model.Merge("aa", "aa");
  model.Merge("aaaa", "aaaa");
  // A quadratic algorithm would need hours for this.
  EXPECT_EQ(model.Encode(std::string(1 << 20, 'a')).size(), (1u << 20) / 8 * 9 - 1);
}

}  // namespace
}  // namespace fathom
