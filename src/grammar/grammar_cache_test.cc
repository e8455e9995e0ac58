// What lives of grammars, and of the answers under them.
#include "grammar/grammar_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "grammar/fake_grammar.h"

namespace fathom {
namespace {

TEST(GrammarCacheTest, LetsGoOfTheOldestThatNobodyHolds) {
  GrammarCache cache({.bytes = 10000, .entries = 10, .all = 1000, .client = 500});
  const auto keep = [&](const char* key, size_t bytes, uint64_t client) {
    return *cache.Keep(key, OfBytes(bytes), client);
  };
  const auto held = keep("held", 200, 1);
  keep("other", 100, 2);
  for (const char* key : {"a", "b"}) keep(key, 150, 1);
  ASSERT_NE(cache.Find("a"), nullptr);
  keep("c", 150, 1);  // with 650 of its own, of which the oldest in use stays
  EXPECT_EQ(cache.bytes(), 600u);
  EXPECT_EQ(cache.Find("b"), nullptr);
  for (const char* key : {"a", "c", "other", "held"}) EXPECT_NE(cache.Find(key), nullptr) << key;

  keep("d", 450, 3);  // with 1050 of all: a is the oldest that nobody holds
  EXPECT_EQ(cache.bytes(), 900u);
  EXPECT_EQ(cache.Find("a"), nullptr);
  EXPECT_EQ(cache.Keep("e", OfBytes(501), 4).status().code(), StatusCode::kUnavailable);
}

TEST(GrammarCacheTest, ForgetsClientsThatHaveNothing) {
  GrammarCache cache({.bytes = 20, .entries = 1, .all = 1000, .client = 500});
  for (uint64_t client = 0; client < 100; ++client) {
    EXPECT_TRUE(cache.Keep(std::to_string(client), OfBytes(1), client).ok());
  }
  EXPECT_LE(cache.clients(), 2u);
}

// One whose answers take a block of memory with each token.
class GrowingGrammar final : public Grammar {
 public:
  static constexpr size_t kBlock = 10'000;

  Result<std::unique_ptr<GrammarState>> Start() const override {
    return std::unique_ptr<GrammarState>(std::make_unique<State>());
  }
  size_t bytes() const override { return 1; }

 private:
  class State final : public GrammarState {
   public:
    Result<bool> Accept(TokenId) override {
      blocks_.push_back(std::make_unique<std::array<char, kBlock>>());
      return true;
    }
    Status FillMask(std::span<uint32_t>) override { return {}; }
    bool terminated() const override { return false; }
    Status Rollback(int32_t tokens) override {
      blocks_.resize(blocks_.size() - static_cast<size_t>(tokens));
      return {};
    }

   private:
    std::vector<std::unique_ptr<std::array<char, kBlock>>> blocks_;
  };
};

// A share is ten blocks and something, and all is two of them.
std::shared_ptr<GrammarCache> CacheOfBlocks() {
  constexpr size_t kShare = 10 * GrowingGrammar::kBlock + 5000;
  return std::make_shared<GrammarCache>(
      GrammarCacheLimits{.bytes = 10 * kShare, .entries = 10, .all = 2 * kShare, .client = kShare});
}

// They were counted nowhere: one request's took half a gigabyte.
TEST(GrammarCacheTest, WhatAnswersTakeIsBounded) {
  const auto cache = CacheOfBlocks();
  const auto grammar = *cache->Keep("key", std::make_shared<GrowingGrammar>(), 0);
  const auto mine = cache->For(grammar, 1);
  auto first = *mine->Start(), second = *mine->Start();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(*first->Accept(TokenId{1}));
  // Whichever thread has it go on.
  std::thread([&] {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(*second->Accept(TokenId{1}));
  }).join();
  EXPECT_GE(cache->bytes(), 9 * GrowingGrammar::kBlock);
  EXPECT_TRUE(second->Rollback(2).ok());
  EXPECT_LT(cache->bytes(), 8 * GrowingGrammar::kBlock);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(*first->Accept(TokenId{1}));
  const Result<bool> beyond = first->Accept(TokenId{1});
  EXPECT_EQ(beyond.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(beyond.status().message().find("one client"), std::string::npos);
  // Another client has its own share.
  auto other = *cache->For(grammar, 2)->Start();
  EXPECT_TRUE(*other->Accept(TokenId{1}));
  // What ended has let go at once: its client's other answers go on.
  EXPECT_TRUE(*second->Accept(TokenId{1}));
  first.reset(), second.reset(), other.reset();
  EXPECT_TRUE(cache->MakeRoom(1).ok());
  EXPECT_EQ(cache->bytes(), 1u);
}

TEST(GrammarCacheTest, AnAnswerThatIsTooMuchAloneIsNotToBeTriedAgain) {
  const auto cache = CacheOfBlocks();
  const auto grammar = cache->For(std::make_shared<GrowingGrammar>(), 1);
  const auto answer = *grammar->Start();
  Status end;
  for (int i = 0; end.ok() && i < 20; ++i) end = answer->Accept(TokenId{1}).status();
  EXPECT_EQ(end.code(), StatusCode::kInvalidArgument);
}

TEST(GrammarCacheTest, AnAnswerMayHaveLessThanItsClient) {
  constexpr size_t kMuch = 100 * GrowingGrammar::kBlock;
  const auto cache = std::make_shared<GrammarCache>(
      GrammarCacheLimits{.bytes = kMuch,
                         .entries = 10,
                         .all = kMuch,
                         .client = kMuch,
                         .answer = 3 * GrowingGrammar::kBlock + 5000});
  const auto grammar = cache->For(std::make_shared<GrowingGrammar>(), 1);
  const auto answer = *grammar->Start(), other = *grammar->Start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(*answer->Accept(TokenId{1}) && *other->Accept(TokenId{1}));
  }
  EXPECT_EQ(answer->Accept(TokenId{1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(other->FillMask({}).ok());
}

// Whoever's token came next had ended, however little it held.
TEST(GrammarCacheTest, AModestClientGoesOn) {
  const auto cache = CacheOfBlocks();
  const auto grammar = std::make_shared<GrowingGrammar>();
  const auto first = *cache->For(grammar, 1)->Start(), second = *cache->For(grammar, 2)->Start(),
             modest = *cache->For(grammar, 3)->Start();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(*first->Accept(TokenId{1}) && *second->Accept(TokenId{1}));
  }
  EXPECT_TRUE(*modest->Accept(TokenId{1}));
  const Status end = first->FillMask({});
  EXPECT_NE(end.message().find("all clients'"), std::string::npos) << end.message();
  EXPECT_TRUE(second->FillMask({}).ok());
}

TEST(GrammarCacheTest, AnswersOfAllClientsAreBounded) {
  const auto cache = CacheOfBlocks();
  ASSERT_TRUE(cache->Keep("only kept", OfBytes(2 * GrowingGrammar::kBlock), 9).ok());
  const auto grammar = std::make_shared<GrowingGrammar>();
  std::vector<std::unique_ptr<GrammarState>> answers;
  for (uint64_t client = 0; client < 3; ++client) {
    answers.push_back(*cache->For(grammar, client)->Start());
  }
  int taken = 0;
  Status end;
  for (; end.ok() && taken < 30; ++taken) end = answers[taken % 3]->Accept(TokenId{1}).status();
  EXPECT_NE(end.message().find("all clients'"), std::string::npos);
  EXPECT_EQ(taken, 21);  // what was only kept gave way
  EXPECT_EQ(cache->Find("only kept"), nullptr);
}

}  // namespace
}  // namespace fathom
