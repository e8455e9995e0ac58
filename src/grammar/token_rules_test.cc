#include "grammar/token_rules.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace fathom {
namespace {

constexpr int32_t kVocab = 40;
const TokenId kStop{39};

std::vector<TokenId> Tokens(const std::vector<int32_t>& ids) {
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

std::vector<int32_t> Next(GrammarState& state) {
  std::vector<uint32_t> mask(MaskWords(kVocab));
  EXPECT_TRUE(state.FillMask(mask).ok());
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(mask.size()) * 32; ++id) {
    if ((mask[id / 32] >> (id % 32) & 1) != 0) ids.push_back(id);
  }
  return ids;
}

std::unique_ptr<GrammarState> Start(TokenRules rules) {
  return MakeTokenGrammar(std::move(rules), {kStop}, kVocab)->Start().value();
}

TEST(TokenRules, NothingButWhatIsAllowed) {
  const auto state = Start({.allowed = Tokens({3, 35})});
  EXPECT_EQ(Next(*state), (std::vector<int32_t>{3, 35}));
  EXPECT_TRUE(state->Accept(TokenId{35}).value());
  EXPECT_FALSE(state->Accept(TokenId{4}).value());
  EXPECT_FALSE(state->Accept(kStop).value());
  EXPECT_EQ(Next(*state), (std::vector<int32_t>{3, 35}));
}

TEST(TokenRules, ABannedTokenIsGoneAndTheRestStays) {
  const auto state = Start({.banned = {Tokens({5})}});
  const std::vector<int32_t> next = Next(*state);
  EXPECT_EQ(next.size(), size_t{kVocab} - 1);  // and none beyond the vocabulary
  EXPECT_FALSE(state->Accept(TokenId{5}).value());
  EXPECT_TRUE(state->Accept(kStop).value());
  EXPECT_TRUE(state->terminated());
}

TEST(TokenRules, ABannedRunIsNotCompleted) {
  const auto state =
      Start({.allowed = Tokens({1, 2, 3}), .banned = {Tokens({1, 1, 2}), Tokens({3, 3})}});
  for (const int32_t id : {2, 1}) EXPECT_TRUE(state->Accept(TokenId{id}).value());
  EXPECT_EQ(Next(*state), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(state->Accept(TokenId{1}).value());
  EXPECT_EQ(Next(*state), (std::vector<int32_t>{1, 3}));  // 1 1 is there
  EXPECT_FALSE(state->Accept(TokenId{2}).value());
  for (const int32_t id : {1, 3}) EXPECT_TRUE(state->Accept(TokenId{id}).value());
  EXPECT_EQ(Next(*state), (std::vector<int32_t>{1, 2}));  // 3 is
}

TEST(TokenRules, NothingLeftIsAnError) {
  const auto state = Start({.allowed = Tokens({7}), .banned = {Tokens({7})}});
  std::vector<uint32_t> mask(MaskWords(kVocab));
  EXPECT_EQ(state->FillMask(mask).code(), StatusCode::kInternal);
}

TEST(TokenRules, GoesBack) {
  const auto state = Start({.allowed = Tokens({1, 2, Raw(kStop)}), .banned = {Tokens({1, 1, 2})}});
  for (const int32_t id : {1, 1}) EXPECT_TRUE(state->Accept(TokenId{id}).value());
  const std::vector<int32_t> before = Next(*state);
  EXPECT_TRUE(state->Accept(TokenId{1}).value());
  EXPECT_TRUE(state->Accept(kStop).value());
  EXPECT_TRUE(state->terminated());
  EXPECT_TRUE(state->Rollback(2).ok());
  EXPECT_FALSE(state->terminated());
  EXPECT_EQ(Next(*state), before);
  EXPECT_FALSE(state->Accept(TokenId{2}).value());
}

}  // namespace
}  // namespace fathom
