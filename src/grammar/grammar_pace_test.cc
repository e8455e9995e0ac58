#include "grammar/grammar_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

constexpr int32_t kVocab = 200;
constexpr int64_t kMs = 1'000'000;

void Work(int64_t ms) {
  for (const int64_t end_ns = ThreadNs() + ms * kMs; ThreadNs() < end_ns;) {
  }
}

// Allows one of the three tokens behind its last one; the token at `slow` takes 25 ms of a thread,
// and each of them `each_ms`.
class Counting final : public Grammar {
 public:
  explicit Counting(int slow, int64_t each_ms = 0, bool once = false)
      : slow_(slow), each_ms_(each_ms), once_(once) {}
  class State final : public GrammarState {
   public:
    explicit State(const Counting& of) : of_(of) {}
    Result<bool> Accept(TokenId token) override {
      if (Raw(token) <= last_ || Raw(token) > last_ + 3) return Internal("not in the mask");
      last_ = Raw(token);
      of_.seen.insert(last_);
      const bool slow = ++at_ == of_.slow_ && !(of_.once_ && of_.starts > 1);
      Work(slow ? 25 : of_.each_ms_);
      return true;
    }
    Status FillMask(std::span<uint32_t> words) override {
      std::fill(words.begin(), words.end(), 0);
      for (int id = last_ + 1; id <= last_ + 3; ++id) words[id / 32] |= 1U << (id % 32);
      return {};
    }
    bool terminated() const override { return false; }
    Status Rollback(int32_t) override { return Internal("not here"); }

   private:
    const Counting& of_;
    int32_t last_ = 30;
    int at_ = 0;
  };
  Result<std::unique_ptr<GrammarState>> Start() const override {
    ++starts;
    return std::unique_ptr<GrammarState>(std::make_unique<State>(*this));
  }
  size_t bytes() const override { return 1; }

  mutable std::set<int32_t> seen;
  mutable int starts = 0;

 private:
  const int slow_;
  const int64_t each_ms_;
  const bool once_;
};

TEST(GrammarPace, IsTriedBeforeAnAnswer) {
  const Counting quick(0), slow(8), late(40);
  EXPECT_TRUE(TryPace(quick, kVocab).ok());
  EXPECT_EQ(quick.seen.size(), 32u);
  EXPECT_GT(*quick.seen.rbegin(), 30 + 40) << "not always the first of three";
  EXPECT_LT(*quick.seen.rbegin(), 30 + 90) << "nor the last";
  EXPECT_EQ(TryPace(slow, kVocab).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(TryPace(late, kVocab).ok());
  const Counting once(8, /*each_ms=*/0, /*once=*/true);
  EXPECT_TRUE(TryPace(once, kVocab).ok()) << "the machine may have been slow";
  const Counting heavy(0, /*each_ms=*/15);
  EXPECT_TRUE(TryPace(heavy, kVocab).ok());
  EXPECT_LE(heavy.seen.size(), 8u) << "a compiler's thread has others to serve";
}

// Five hundred rules that may each be nothing: a token took more of the engine's thread
// the further an answer came: 5 ms, and soon 50.
TEST(GrammarPace, OfRulesThatMayAllBeNothingIsRefused) {
  GrammarVocabulary vocabulary{.tokens = {"<eos>"}, .eos = {TokenId{0}}, .size = 27};
  for (char c = 'a'; c <= 'z'; ++c) vocabulary.tokens.emplace_back(64, c);
  const auto rules = [](int count) {
    std::string root = "root ::=", others;
    for (int i = 0; i < count; ++i) {
      root += fmt::format(" r{}", i);
      others += fmt::format("\nr{} ::= [a-z]*", i);
    }
    return GrammarSpec{.kind = GrammarKind::kEbnf, .text = root + others};
  };
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(vocabulary);
  EXPECT_TRUE(compile(rules(3)).ok());
  const auto slow = compile(rules(500));
  ASSERT_FALSE(slow.ok());
  EXPECT_NE(slow.status().message().find("more than 20 ms for a token"), std::string::npos)
      << slow.status().message();
}

// A mask of it is seconds of work, behind a beginning that takes none.
TEST(GrammarPace, EndsWithinAMask) {
  GrammarVocabulary vocabulary{.tokens = {"<eos>"}, .eos = {TokenId{0}}, .size = 0};
  for (char a = ' '; a < 127; ++a) {
    vocabulary.tokens.emplace_back(1, a);
    for (char b = ' '; b < 127; ++b) vocabulary.tokens.push_back({a, b});
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.tokens.size());
  const auto token = [&](const char* text) {
    const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), text);
    return TokenId{static_cast<int32_t>(found - vocabulary.tokens.begin())};
  };
  const auto grammar = MakeXgrammarCompile(vocabulary)(
      {.kind = GrammarKind::kRegex, .text = "q{99}q{50}(((.{0,9}){0,9}){0,9}){0,8}"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const std::unique_ptr<GrammarState> state = (*grammar)->Start().value();
  std::vector<uint32_t> words(MaskWords(vocabulary.size));
  for (int i = 0; i < 149; ++i) ASSERT_TRUE(state->Accept(token("q")).value());
  Status status;
  int64_t took_ns = 0;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    const int64_t begin_ns = ThreadNs();
    const PaceLimit limit(20 * kMs);
    ASSERT_TRUE(state->Accept(token("a")).value());
    status = state->FillMask(words);
    took_ns = ThreadNs() - begin_ns;
  }
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_LT(took_ns, 60 * kMs);
}

}  // namespace
}  // namespace fathom
