#include "engine/result_message.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/remote_executor.h"
#include "speculation/speculation.h"

namespace fathom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

StepResult Example() {
  RowResult first;
  first.tokens.push_back(
      {TokenId{7}, TokenLogprobs{-0.5f, {{TokenId{7}, -0.5f}, {TokenId{1}, -kInfinity}}}});
  first.tokens.push_back({TokenId{129279}, std::nullopt});
  first.drafts = 3;
  first.proposed = {TokenId{4}, TokenId{0}};
  first.prompt_logprobs.push_back({-2, {}});
  RowResult failed;
  failed.status = Internal("the logits hold \"NaN\"");
  return {.step = uint64_t{1} << 40, .rows = {first, failed, {}}, .status = {}};
}

TEST(ResultMessageTest, ComesBackAsItWas) {
  const StepResult sent = Example();
  const StepResult back = ParseStepResult(Serialize(sent)).value();
  EXPECT_EQ(back.step, sent.step);
  EXPECT_TRUE(back.status.ok());
  ASSERT_EQ(back.rows.size(), 3u);
  const RowResult& row = back.rows[0];
  ASSERT_EQ(row.tokens.size(), 2u);
  EXPECT_EQ(row.tokens[0].id, TokenId{7});
  EXPECT_EQ(row.tokens[0].logprobs->logprob, -0.5f);
  EXPECT_EQ(row.tokens[0].logprobs->top, sent.rows[0].tokens[0].logprobs->top);
  EXPECT_EQ(row.tokens[1].id, TokenId{129279});
  EXPECT_FALSE(row.tokens[1].logprobs);
  EXPECT_EQ(row.drafts, 3);
  EXPECT_EQ(row.proposed, sent.rows[0].proposed);
  ASSERT_EQ(row.prompt_logprobs.size(), 1u);
  EXPECT_EQ(row.prompt_logprobs[0].logprob, -2);
  EXPECT_EQ(back.rows[1].status.code(), StatusCode::kInternal);
  EXPECT_EQ(back.rows[1].status.message(), sent.rows[1].status.message());
  EXPECT_TRUE(back.rows[2].tokens.empty());
}

TEST(ResultMessageTest, AFailedStepSaysWhy) {
  const StepResult back =
      ParseStepResult(Serialize({.step = 3, .rows = {}, .status = Unavailable("gone")})).value();
  EXPECT_EQ(back.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(back.status.message(), "gone");
}

TEST(ResultMessageTest, BitsOfNanSurvive) {
  StepResult result = Example();
  result.rows[0].tokens[0].logprobs->logprob = std::nanf("");
  const StepResult back = ParseStepResult(Serialize(result)).value();
  EXPECT_TRUE(std::isnan(back.rows[0].tokens[0].logprobs->logprob));
}

// Every prefix, and every byte turned: an error or another result, never a crash.
TEST(ResultMessageTest, DamagedOnesAreRefusedOrRead) {
  const std::string bytes = Serialize(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ParseStepResult(bytes.substr(0, size)).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(ParseStepResult(bytes + "x").status().code(), StatusCode::kDataLoss);
  const std::string unknown_status = "\x93\x03\x92\xcc\xc8\xa0\x90";
  EXPECT_EQ(ParseStepResult(unknown_status).status().code(), StatusCode::kDataLoss);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char flip : {'\x01', '\x20', '\x80', '\xff'}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const Result<StepResult> read = ParseStepResult(damaged);
      EXPECT_TRUE(read.ok() || read.status().code() == StatusCode::kDataLoss);
    }
  }
}

// The engine checks both: a host that answers otherwise would end the process.
TEST(ResultMessageTest, ResultsOfAnotherStepOrOtherRowsFailTheStep) {
  RemoteResults results(/*host=*/1, /*group=*/0);
  const StepResult sent = Example();
  for (const auto& [step, rows] : {std::pair(sent.step, size_t{3}), {7, 3}, {sent.step, 2}}) {
    ASSERT_TRUE(results.Take(Serialize(sent)).ok());
    const StepResult got = results.Wait(step, rows);
    EXPECT_EQ(got.step, step);
    EXPECT_EQ(got.status.ok(), step == sent.step && rows == sent.rows.size());
    EXPECT_EQ(got.rows.size(), got.status.ok() ? rows : 0);
  }
}

RankStats StatsOf(int rank, int stage, int group) {
  return {.rank = rank,
          .stage = stage,
          .group = group,
          .memory = {1, 2, 3, 4, 5, 6, uint64_t{1} << 40},
          .steps = 9,
          .busy_ns = uint64_t{1} << 50};
}

// A grammar takes back no more tokens than a decode can have drafts.
TEST(ResultMessageTest, MoreDraftsThanADecodeHasAreRefused) {
  StepResult result;
  result.rows.emplace_back().proposed.resize(Speculation::kMostTokens, TokenId{1});
  EXPECT_TRUE(ParseStepResult(Serialize(result)).ok());
  result.rows[0].proposed.push_back(TokenId{1});
  EXPECT_EQ(ParseStepResult(Serialize(result)).status().code(), StatusCode::kDataLoss);
}

// No more series than there are ranks, whatever a host says.
TEST(RankStatsMessageTest, OfItsOwnRanksAloneAndAlwaysTheSame) {
  RemoteResults results(/*host=*/1, /*group=*/0);
  EXPECT_TRUE(results.Ranks().empty());
  const auto takes = [&](const std::vector<RankStats>& ranks) {
    return results.TakeRanks(Serialize(ranks), /*ranks_each=*/2).ok();
  };
  EXPECT_FALSE(takes({StatsOf(1, 1, 0)})) << "of host 0";
  EXPECT_FALSE(takes({StatsOf(4, 1, 0)})) << "of host 2";
  EXPECT_FALSE(takes({StatsOf(2, 1, 1)})) << "of another group";
  EXPECT_FALSE(takes({StatsOf(2, 1, 0), StatsOf(3, 1, 0), StatsOf(3, 1, 0)})) << "more than it has";
  EXPECT_TRUE(takes({StatsOf(2, 1, 0), StatsOf(3, 1, 0)}));
  EXPECT_FALSE(takes({StatsOf(2, 1, 0)})) << "fewer than before";
  EXPECT_FALSE(takes({StatsOf(2, 1, 0), StatsOf(3, 2, 0)})) << "of another stage than before";
  ASSERT_EQ(results.Ranks().size(), 2u);
  const RankStats back = results.Ranks()[1];
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.stage, 1);
  EXPECT_EQ(back.steps, 9u);
  EXPECT_EQ(back.busy_ns, uint64_t{1} << 50);
  EXPECT_EQ(back.memory, StatsOf(0, 0, 0).memory);
}

TEST(RankStatsMessageTest, DamagedOnesAreRefusedOrRead) {
  const std::string bytes = Serialize(std::vector{StatsOf(2, 1, 0), StatsOf(3, 1, 0)});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ParseRankStats(bytes.substr(0, size), 2).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(ParseRankStats(bytes + "x", 2).status().code(), StatusCode::kDataLoss);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char flip : {'\x01', '\x20', '\x80', '\xff'}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const auto read = ParseRankStats(damaged, 2);
      EXPECT_TRUE(read.ok() || read.status().code() == StatusCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace fathom
