#include "engine/grammar_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "grammar/grammar_pace.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;  // NOLINT: of tests only

constexpr int32_t kVocab = 64;
constexpr int64_t kMsNs = 1'000'000;

// What it costs a thread to take a token that stands for so many milliseconds; one for kForEver
// costs all the time until `released`.
constexpr int32_t kForEver = 63;

class Costly final : public Grammar {
 public:
  class State final : public GrammarState {
   public:
    explicit State(std::shared_ptr<std::atomic<bool>> released) : released_(std::move(released)) {}
    Result<bool> Accept(TokenId token) override {
      if (Raw(token) == kForEver) {
        while (!*released_) {
        }
      }
      for (const int64_t end = ThreadNs() + Raw(token) * kMsNs; ThreadNs() < end;) {
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
    const std::shared_ptr<std::atomic<bool>> released_;
  };
  Result<std::unique_ptr<GrammarState>> Start() const override {
    return std::unique_ptr<GrammarState>(std::make_unique<State>(released));
  }
  size_t bytes() const override { return 1; }

  std::shared_ptr<std::atomic<bool>> released = std::make_shared<std::atomic<bool>>(false);
};

class GrammarWorkersTest : public testing::Test {
 protected:
  // Rows of one token each, that costs so many milliseconds.
  void Add(const std::shared_ptr<const Grammar>& grammar, std::vector<int32_t> costs) {
    GenerateRequest request;
    request.grammar = grammar;
    for (const int32_t cost : costs) {
      results_.push_back(std::make_unique<RowResult>());
      results_.back()->tokens = {{TokenId{cost}, {}}};
      auto guide = std::make_shared<GrammarGuide>(GrammarGuide::Start(request, kVocab).value());
      rows_.push_back({std::move(guide), grammar, results_.back().get()});
    }
  }
  // Of all rows, whether they stand.
  std::vector<bool> Follow() {
    workers_.Follow(rows_);
    std::vector<bool> stand;
    for (const auto& result : results_) {
      stand.push_back(result->status.ok());
      EXPECT_EQ(result->tokens.size(), stand.back() ? 1u : 0u);
      const StatusCode code = stand.back() ? StatusCode::kOk : StatusCode::kInvalidArgument;
      EXPECT_EQ(result->status.code(), code);
    }
    rows_.clear();
    results_.clear();
    return stand;
  }

  GrammarWorkers workers_;
  std::vector<GuidedRow> rows_;
  std::vector<std::unique_ptr<RowResult>> results_;
};

// One mask takes seconds, and nothing stops who makes it: all others waited.
TEST_F(GrammarWorkersTest, NobodyWaitsForOneThatDoesNotEnd) {
  const auto endless = std::make_shared<Costly>(), good = std::make_shared<Costly>();
  for (int i = 0; i < 3; ++i) {  // each time by a thread that is new
    Add(i == 0 ? endless : std::make_shared<Costly>(*endless), {kForEver, 0, 0});
    Add(good, {0, 1});
    EXPECT_EQ(Follow(), (std::vector{false, false, false, true, true}));
  }
  Add(endless, {0});
  EXPECT_EQ(Follow(), (std::vector{false})) << "the time of its request is spent";
  EXPECT_TRUE(workers_.HasRoom().ok());
  while (workers_.HasRoom().ok()) {
    Add(std::make_shared<Costly>(*endless), {kForEver});
    EXPECT_EQ(Follow(), (std::vector{false}));
  }
  Add(good, {0});
  EXPECT_EQ(Follow(), (std::vector{true})) << "who has begun goes on";
  *endless->released = true;
  for (int i = 0; i < 1'000 && !workers_.HasRoom().ok(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(workers_.HasRoom().ok());
}

TEST_F(GrammarWorkersTest, ARequestMayBeSlowOnceAndNotAllTheTime) {
  const auto slow = std::make_shared<Costly>(), quick = std::make_shared<Costly>();
  std::vector<bool> stood;
  for (int i = 0; i < 5; ++i) {
    Add(slow, {60});
    Add(quick, {15});
    const std::vector<bool> stand = Follow();
    stood.push_back(stand[0]);
    EXPECT_TRUE(stand[1]);
  }
  EXPECT_TRUE(stood[0]);
  EXPECT_FALSE(stood[3]);
  EXPECT_FALSE(stood[4]);
}

// Many answers of a request that each take what one may would hold up all others for seconds.
TEST_F(GrammarWorkersTest, AnswersOfARequestShareItsTime) {
  Add(std::make_shared<Costly>(), std::vector<int32_t>(128, 15));
  EXPECT_EQ(Follow(), std::vector<bool>(128, false));
  Add(std::make_shared<Costly>(), std::vector<int32_t>(24, 1));
  EXPECT_EQ(Follow(), std::vector<bool>(24, true));
  for (int i = 0; i < 24; ++i) Add(std::make_shared<Costly>(), {15});
  EXPECT_EQ(Follow(), std::vector<bool>(24, true)) << "of several requests";
}

}  // namespace
}  // namespace fathom
