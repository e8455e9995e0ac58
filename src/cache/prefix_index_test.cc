#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "base/rng.h"

namespace fathom {
namespace {

constexpr int32_t kPages = 12;

// A prompt of whole pages, each named by a letter, and the pages that its request holds.
struct Prompt {
  explicit Prompt(std::string_view letters, const PrefixHash& hash = Sha256,
                  const PrefixScope& scope = {}) {
    for (const char letter : letters) {
      tokens.insert(tokens.end(), kPageTokens, TokenId{letter});
    }
    chain.scope = scope.Key();
    for (size_t at = 0; at < tokens.size(); at += kPageTokens) {
      chain.pages.push_back({.tokens = std::span(tokens).subspan(at, kPageTokens)});
    }
    chain.MakeKeys(hash);
  }
  Prompt(const Prompt&) = delete;
  ~Prompt() { Release(); }

  void Release() {  // last to first
    while (!pages.empty()) pages.pop_back();
  }

  std::vector<TokenId> tokens;
  PrefixChain chain;
  std::vector<PageRef> pages;
};

class PrefixIndexTest : public testing::Test {
 protected:
  // Takes what is there, computes and publishes the rest; how many pages were there.
  int32_t Run(Prompt& prompt) {
    const int32_t found = index_.Find(prompt.chain, prompt.chain.size());
    index_.Hold(prompt.chain, found, prompt.pages);
    EXPECT_TRUE(pool_.Allocate(prompt.chain.size() - found, prompt.pages));
    for (int32_t at = found; at < prompt.chain.size(); ++at) {
      EXPECT_EQ(pool_.references(prompt.pages[at].id()), 1);
      if (!index_.Publish(prompt.chain, at, prompt.pages)) break;
    }
    index_.CheckIntegrity();
    pool_.CheckIntegrity();
    return found;
  }
  int32_t Found(std::string_view letters, const PrefixScope& scope = {}) const {
    const Prompt prompt(letters, Sha256, scope);
    return index_.Find(prompt.chain, prompt.chain.size());
  }

  PagePool pool_{kPages};
  PrefixIndex index_{&pool_};
};

TEST(Sha256, IsSha256) {
  const std::string_view text = "abc";
  const PrefixKey key = Sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  EXPECT_EQ(key[0], 0xba);
  EXPECT_EQ(key[1], 0x78);
  EXPECT_EQ(key[31], 0xad);
}

TEST_F(PrefixIndexTest, PagesOutliveTheirRequest) {
  {
    Prompt first("abc");
    EXPECT_EQ(Run(first), 0);
    EXPECT_EQ(pool_.references(first.pages[0].id()), 2);
    EXPECT_EQ(pool_.idle_pages(), 0);
  }
  EXPECT_EQ(pool_.idle_pages(), 3);
  EXPECT_EQ(pool_.free_pages(), kPages);
  EXPECT_EQ(Found("abc"), 3);
  EXPECT_EQ(Found("abx"), 2);
  EXPECT_EQ(Found("xbc"), 0);
  EXPECT_EQ(Found("bc"), 0);
  Prompt second("abd");
  EXPECT_EQ(Run(second), 2);
  EXPECT_EQ(pool_.idle_pages(), 1);
}

TEST_F(PrefixIndexTest, FindsNoMoreThanIsAskedFor) {
  Prompt prompt("abc");
  Run(prompt);
  EXPECT_EQ(index_.Find(prompt.chain, 2), 2);
  EXPECT_EQ(index_.Find(prompt.chain, 0), 0);
}

TEST_F(PrefixIndexTest, AKeyIsOfAllThatLatentsDependOn) {
  Prompt prompt("ab");
  Run(prompt);
  Prompt forms("ab");
  forms.chain.pages[0].expanded = 1;
  forms.chain.MakeKeys();
  EXPECT_EQ(index_.Find(forms.chain, 2), 0);
  EXPECT_EQ(Found("ab", {.model = "m"}), 0);
  EXPECT_EQ(Found("ab", {.kv_format = "fp8"}), 0);
  EXPECT_EQ(Found("ab", {.adapter = "a"}), 0);
  EXPECT_EQ(Found("ab", {.salt = "s"}), 0);
  EXPECT_NE((PrefixScope{.model = "ab", .salt = "c"}).Key(),
            (PrefixScope{.model = "a", .salt = "bc"}).Key());
}

TEST_F(PrefixIndexTest, LongestIdleGoesFirstAndChildrenBeforeParents) {
  Prompt first("abcd"), second("xyz"), third("abe");
  Run(first), Run(second), Run(third);
  first.Release();   // d, c: a and b are held still
  second.Release();  // z, y, x
  third.Release();   // e, b, a
  EXPECT_EQ(pool_.idle_pages(), 8);
  std::vector<PageRef> taken;
  ASSERT_TRUE(pool_.Allocate(kPages - 8, taken));  // the free ones
  std::vector<int32_t> found;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pool_.Allocate(1, taken));
    index_.CheckIntegrity();
    found.push_back(Found("abcd") * 100 + Found("xyz") * 10 + Found("abe"));
  }
  EXPECT_EQ(found, (std::vector<int32_t>{333, 233, 223, 213, 203, 202, 101, 0}));
  EXPECT_FALSE(pool_.Allocate(1, taken));
}

TEST_F(PrefixIndexTest, WhatIsTakenAgainIsYoung) {
  Prompt first("a"), second("b");
  Run(first), Run(second);
  first.Release();
  second.Release();
  Prompt again("a");
  EXPECT_EQ(Run(again), 1);
  again.Release();
  std::vector<PageRef> taken;
  ASSERT_TRUE(pool_.Allocate(kPages - 1, taken));
  EXPECT_EQ(Found("a"), 1);
  EXPECT_EQ(Found("b"), 0);
}

TEST_F(PrefixIndexTest, PagesInUseAreNeverEvicted) {
  Prompt prompt("abc");
  Run(prompt);
  std::vector<PageRef> taken;
  EXPECT_FALSE(pool_.Allocate(kPages - 2, taken));
  ASSERT_TRUE(pool_.Allocate(kPages - 3, taken));
  EXPECT_EQ(Found("abc"), 3);
}

// Whoever computes what another has published meanwhile keeps its pages to itself, and what lies
// behind them.
TEST_F(PrefixIndexTest, ASecondCopyIsNotPublished) {
  Prompt first("ab"), second("abc");
  ASSERT_TRUE(pool_.Allocate(3, second.pages));
  Run(first);
  EXPECT_FALSE(index_.Publish(second.chain, 0, second.pages));
  EXPECT_FALSE(index_.Publish(second.chain, 2, second.pages));
  EXPECT_EQ(index_.size(), 2);
  index_.CheckIntegrity();
}

TEST_F(PrefixIndexTest, ClearForgetsAllAndTakesNothingAway) {
  Prompt used("ab"), idle("xy");
  Run(used), Run(idle);
  idle.Release();
  index_.Clear();
  index_.CheckIntegrity();
  pool_.CheckIntegrity();
  EXPECT_EQ(Found("ab") + Found("xy"), 0);
  EXPECT_EQ(pool_.free_pages(), kPages - 2);
  EXPECT_EQ(pool_.references(used.pages[0].id()), 1);
  EXPECT_FALSE(index_.Publish(used.chain, 1, used.pages));  // its parent is unknown now
  Prompt again("ab");
  EXPECT_EQ(Run(again), 0);
}

TEST_F(PrefixIndexTest, EqualKeysNeverShareAWrongPage) {
  const PrefixHash all_equal = [](std::span<const uint8_t>) { return PrefixKey{}; };
  Prompt first("ab", all_equal), other("xy", all_equal), behind("xab", all_equal);
  EXPECT_EQ(Run(first), 0);
  EXPECT_EQ(index_.size(), 1);  // of its own pages too only one has the key
  EXPECT_EQ(index_.Find(other.chain, 2), 0);
  EXPECT_EQ(index_.Find(behind.chain, 3), 0);
  Prompt again("ab", all_equal);
  EXPECT_EQ(index_.Find(again.chain, 2), 1);
  Prompt salted("ab", all_equal, {.salt = "s"});
  EXPECT_EQ(index_.Find(salted.chain, 2), 0);
}

// With keys of 3 bits, and with good ones.
TEST_F(PrefixIndexTest, RandomUseSharesOnlyWhatIsTheSame) {
  const PrefixHash few_bits = [](std::span<const uint8_t> bytes) {
    return PrefixKey{static_cast<uint8_t>(Sha256(bytes)[0] & 7)};
  };
  for (const PrefixHash& hash : {few_bits, PrefixHash(Sha256)}) {
    Rng rng(3);
    std::deque<std::unique_ptr<Prompt>> running;
    std::vector<std::string> content(kPages);  // of each page: the letters up to its own
    int64_t hits = 0;
    for (int i = 0; i < 5000; ++i) {
      std::string letters;
      for (uint32_t n = 1 + rng.Below(4); n > 0; --n) {
        letters += static_cast<char>('a' + rng.Below(2));
      }
      auto owned = std::make_unique<Prompt>(letters, hash);
      Prompt& prompt = *owned;
      const int32_t found = index_.Find(prompt.chain, prompt.chain.size());
      const int32_t needed = prompt.chain.size() - found + index_.Idle(prompt.chain, found);
      if (needed > pool_.free_pages() || rng.Below(3) == 0) {
        if (!running.empty()) running.erase(running.begin() + rng.Below(running.size()));
        if (rng.Below(50) == 0) index_.Clear();
        continue;
      }
      hits += Run(prompt);
      for (int32_t at = 0; at < prompt.chain.size(); ++at) {
        std::string& holds = content[static_cast<size_t>(Raw(prompt.pages[at].id()))];
        const std::string expected = letters.substr(0, at + 1);
        if (at >= found) holds = expected;
        ASSERT_EQ(holds, expected);
      }
      running.push_back(std::move(owned));
    }
    EXPECT_GT(hits, 500);
    running.clear();
    index_.Clear();
    EXPECT_EQ(pool_.free_pages(), kPages);
  }
}

TEST(PrefixIndexDeathTest, AParentIsNotEvictedBeforeItsChild) {
  PagePool pool(2);
  PrefixIndex index(&pool);
  Prompt prompt("ab");
  ASSERT_TRUE(pool.Allocate(2, prompt.pages));
  ASSERT_TRUE(index.Publish(prompt.chain, 0, prompt.pages));
  ASSERT_TRUE(index.Publish(prompt.chain, 1, prompt.pages));
  prompt.pages.erase(prompt.pages.begin());  // first to last
  prompt.pages.clear();
  std::vector<PageRef> taken;
  EXPECT_DEATH((void)pool.Allocate(1, taken), "is evicted before those behind it");
}

}  // namespace
}  // namespace fathom
