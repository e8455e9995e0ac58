#include "engine/grammar_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "grammar/grammar_pace.h"

namespace fathom {
namespace {

constexpr int32_t kVocab = 64;
constexpr int64_t kMsNs = 1'000'000;

// A token costs a thread as many milliseconds as it says; one all that there is.
constexpr int32_t kForEver = 63;

class Costly final : public Grammar {
 public:
  class State final : public GrammarState {
   public:
    Result<bool> Accept(TokenId token) override {
      while (Raw(token) == kForEver) TRY(PaceLimit::Check());
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
  };
  Result<std::unique_ptr<GrammarState>> Start() const override {
    return std::unique_ptr<GrammarState>(std::make_unique<State>());
  }
  size_t bytes() const override { return 1; }
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
      guides_.push_back(
          std::make_unique<GrammarGuide>(GrammarGuide::Start(request, kVocab).value()));
      rows_.push_back({guides_.back().get(), results_.back().get()});
    }
  }
  // Of all rows, whether they stand.
  std::vector<bool> Follow() {
    workers_.Follow(rows_);
    std::vector<bool> stand;
    for (const auto& result : results_) {
      stand.push_back(result->status.ok());
      const StatusCode code = stand.back() ? StatusCode::kOk : StatusCode::kInvalidArgument;
      EXPECT_EQ(result->status.code(), code);
    }
    rows_.clear();
    results_.clear();
    guides_.clear();
    return stand;
  }

  GrammarWorkers workers_;
  std::vector<GuidedRow> rows_;
  std::vector<std::unique_ptr<RowResult>> results_;
  std::vector<std::unique_ptr<GrammarGuide>> guides_;
};

// One mask took seconds, for which all others waited.
TEST_F(GrammarWorkersTest, NobodyWaitsForOneThatDoesNotEnd) {
  const auto endless = std::make_shared<Costly>(), good = std::make_shared<Costly>();
  Add(endless, {kForEver, 0, 0});
  Add(good, {0, 1});
  EXPECT_EQ(Follow()[0], false);
  Add(endless, {0});
  Add(good, {0});
  EXPECT_EQ(Follow(), (std::vector{false, true})) << "the time of its request is spent";
  for (int i = 0; i < 6; ++i) Add(std::make_shared<Costly>(), {kForEver});
  const int64_t begin_ns = ThreadNs();
  EXPECT_EQ(Follow(), std::vector<bool>(6, false));
  EXPECT_LT(ThreadNs() - begin_ns, 6 * 60 * kMsNs) << "of a step all share what there is to spare";
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
