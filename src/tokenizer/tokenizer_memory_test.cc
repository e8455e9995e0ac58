// What tokenising takes of the heap is what is claimed for it: lists of a text's words, matches and
// runs took 72 bytes for each byte of "1,1,1,...", which no claim counted.
#include <gtest/gtest.h>

#include <string>

#include "base/memory_budget.h"
#include "base/rng.h"
#include "base/thread_bytes.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

const Tokenizer& TinyR1() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      std::move(Tokenizer::Load("models/tiny-r1")).value();
  return *tokenizer;
}

std::string Repeated(std::string_view piece, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  return text;
}

// The most bytes that encoding `text` took, in truth; at least as many were claimed.
int64_t Takes(const std::string& text) {
  MemoryBudget budget(kMiB << 10);
  MemoryClaim claim(budget);
  const int64_t before = ThreadBytes();
  ThreadPeak();
  const auto ids = TinyR1().Encode(text, false, {.memory = &claim});
  const int64_t took = ThreadPeak() - before;
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_EQ(claim.held(), 0u);
  EXPECT_LE(took, static_cast<int64_t>(claim.peak() + kMiB / 16)) << text.substr(0, 20);
  return took;
}

TEST(TokenizerMemory, IsLittleAndClaimed) {
  TinyR1();
  for (const char* piece : {"The quick brown fox jumps over the lazy dog. ", "1,", "1\n\n2 ",
                            "a b ", "<think>", "中1", "  x\n"}) {
    const std::string text = Repeated(piece, kMiB);
    EXPECT_LT(Takes(text), static_cast<int64_t>(6 * text.size())) << piece;
  }
}

// Where tokens get denser, what was judged by the beginning does not do.
TEST(TokenizerMemory, OfTokensThatGetDenser) {
  const std::string text = Repeated(" the", kMiB / 2) + Repeated("1,", kMiB / 2);
  EXPECT_LT(Takes(text), static_cast<int64_t>(8 * text.size()));
}

TEST(TokenizerMemory, OfLongWordsIsClaimed) {
  Rng rng(5);
  std::string word;
  while (word.size() < 300'000) word += static_cast<char>('a' + rng.Below(26));
  EXPECT_LT(Takes(word), static_cast<int64_t>(24 * word.size()));
  EXPECT_LT(Takes(std::string(300'000, 'a')), static_cast<int64_t>(24 * word.size()));
}

}  // namespace
}  // namespace fathom
