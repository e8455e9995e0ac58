#include "engine/grammar_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "grammar/grammar_pace.h"
#include "grammar/grammar_steps.h"

namespace fathom {
namespace {

constexpr int32_t kVocab = 256;

// A token takes as many hundredths of what it may as it says; one all that there is, and one more
// memory than an answer may hold.
constexpr int32_t kForEver = 200, kTooLarge = 201;

class Costly final : public Grammar {
 public:
  class State final : public GrammarState {
   public:
    explicit State(const Costly& of) : of_(of) {}
    Result<bool> Accept(TokenId token) override {
      ++of_.tokens_taken;
      if (Raw(token) == kTooLarge) {
        const std::vector<char> much(kMostAnswerBytes + 1);
        return PaceLimit::Check();
      }
      for (int64_t steps = 0; steps < Raw(token) * AnswerPace(kVocab).each() / 100; steps += 1000) {
        steps_to_look -= 1000;
        TRY(PaceLimit::Check());
      }
      while (Raw(token) == kForEver) {
        steps_to_look -= 1000;
        TRY(PaceLimit::Check());
      }
      return true;
    }
    Status FillMask(std::span<uint32_t> words) override {
      std::fill(words.begin(), words.end(), ~0U);
      return {};
    }
    bool terminated() const override { return false; }
    Status Rollback(int32_t) override { return {}; }

   private:
    const Costly& of_;
  };
  Result<std::unique_ptr<GrammarState>> Start() const override {
    return std::unique_ptr<GrammarState>(std::make_unique<State>(*this));
  }
  size_t bytes() const override { return 1; }

  mutable std::atomic<int> tokens_taken = 0;
};

class GrammarWorkersTest : public testing::Test {
 protected:
  // A row that brings tokens of such costs.
  void Add(const std::shared_ptr<const Grammar>& grammar, const std::vector<int32_t>& costs) {
    GenerateRequest request;
    request.grammar = grammar;
    guides_.push_back(std::make_unique<GrammarGuide>(GrammarGuide::Start(request, kVocab).value()));
    Add(*guides_.back(), costs);
  }
  void Add(GrammarGuide& guide, const std::vector<int32_t>& costs) {
    RowResult& result = *results_.emplace_back(std::make_unique<RowResult>());
    for (const int32_t cost : costs) result.tokens.push_back({TokenId{cost}, {}});
    rows_.push_back({&guide, &result});
  }
  // How rows ended.
  std::vector<StatusCode> Follow() {
    workers_.Follow(rows_);
    std::vector<StatusCode> codes;
    tokens_.clear();
    for (const auto& result : results_) {
      codes.push_back(result->status.code());
      tokens_.push_back(result->tokens.size());
    }
    rows_.clear();
    results_.clear();
    return codes;
  }

  static constexpr StatusCode kOk = StatusCode::kOk, kTooSlow = StatusCode::kInvalidArgument;
  GrammarWorkers workers_;
  std::vector<GuidedRow> rows_;
  std::vector<std::unique_ptr<RowResult>> results_;
  std::vector<std::unique_ptr<GrammarGuide>> guides_;
  std::vector<size_t> tokens_;  // that rows have kept
};

TEST_F(GrammarWorkersTest, AnAnswerMayTakeSoMuch) {
  for (int i = 0; i < 3; ++i) {
    const auto of = [] { return std::make_shared<Costly>(); };
    Add(of(), {107});  // seven are in reserve
    Add(of(), {108});
    Add(of(), {150, 20});
    Add(of(), {1, kForEver, 1});
    EXPECT_EQ(Follow(), (std::vector{kOk, kTooSlow, kOk, kTooSlow}))
        << "whatever the time it takes";
    EXPECT_EQ(tokens_, (std::vector<size_t>{1, 0, 2, 1})) << "those that came before stand";
  }
  Add(*guides_[0], {103});
  Add(*guides_[2], {107});
  EXPECT_EQ(Follow(), (std::vector{kTooSlow, kOk})) << "the reserve of one is spent";
}

TEST_F(GrammarWorkersTest, ARowThatHasFailedIsLeftAlone) {
  const auto grammar = std::make_shared<Costly>();
  Add(grammar, {1, kForEver});
  Add(grammar, {1});
  results_[0]->status = Internal("NaN");
  EXPECT_EQ(Follow(), (std::vector{StatusCode::kInternal, kOk}));
  EXPECT_EQ(tokens_, (std::vector<size_t>{2, 1}));
}

// An answer's own error ends its request, so that nobody waits for the others' masks.
TEST_F(GrammarWorkersTest, AnswersOfARequestFailTogether) {
  const auto endless = std::make_shared<Costly>(), good = std::make_shared<Costly>();
  Add(endless, {0});
  Add(good, {0});
  for (int i = 0; i < 126; ++i) Add(endless, {kForEver});
  Add(good, {1});
  std::vector<StatusCode> codes(129, kTooSlow);
  codes[1] = codes[128] = kOk;
  EXPECT_EQ(Follow(), codes);
  EXPECT_LE(endless->tokens_taken, 1 + 8) << "one a thread";
}

// Each within what one may take, they would hold up all others for seconds.
TEST_F(GrammarWorkersTest, AllTogetherMayTakeSoMuch) {
  constexpr int kMost = 4 * 8 * 100 / 90 + 8;
  std::vector<std::shared_ptr<const Grammar>> grammars;
  for (int i = 0; i < 100; ++i) Add(grammars.emplace_back(std::make_shared<Costly>()), {90});
  for (int i = 0; i < 28; ++i) Add(grammars.emplace_back(std::make_shared<Costly>()), {5});
  Add(grammars.emplace_back(std::make_shared<Costly>()), {kTooLarge});
  const std::vector<StatusCode> codes = Follow();
  const auto stand = std::count(codes.begin(), codes.begin() + 100, kOk);
  EXPECT_GE(stand, 4);
  EXPECT_LE(stand, kMost);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), StatusCode::kUnavailable), 100 - stand);
  EXPECT_EQ(std::count(codes.begin() + 100, codes.end(), kOk), 28) << "those that take little";
  EXPECT_EQ(codes.back(), StatusCode::kInvalidArgument) << "by itself";
  Add(grammars[99], {90});
  EXPECT_EQ(Follow(), std::vector{kOk}) << "of another step";
}

}  // namespace
}  // namespace fathom
