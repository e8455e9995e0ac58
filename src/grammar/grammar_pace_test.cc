#include "grammar/grammar_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/thread_bytes.h"
#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_steps.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

constexpr int32_t kVocab = 200;

// Allows one of the three tokens behind its last one; the token at `slow` takes more than it may,
// and each of them `each_steps`.
class Counting final : public Grammar {
 public:
  explicit Counting(int slow, int64_t each_steps = 0, int64_t start_steps = 0)
      : slow_(slow), each_steps_(each_steps), start_steps_(start_steps) {}
  class State final : public GrammarState {
   public:
    explicit State(const Counting& of) : of_(of) {}
    Result<bool> Accept(TokenId token) override {
      if (Raw(token) <= last_ || Raw(token) > last_ + 3) return Internal("not in the mask");
      last_ = Raw(token);
      of_.seen.insert(last_);
      steps_to_look -= ++at_ == of_.slow_ ? AnswerPace(kVocab).May(1) + 1 : of_.each_steps_;
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
    steps_to_look -= start_steps_;
    return std::unique_ptr<GrammarState>(std::make_unique<State>(*this));
  }
  size_t bytes() const override { return 1; }

  mutable std::set<int32_t> seen;

 private:
  const int slow_;
  const int64_t each_steps_, start_steps_;
};

TEST(GrammarPace, AnAnswerHasAReserve) {
  AnswerPace pace(kVocab);
  const int64_t each = pace.each(), reserve = pace.May(1) - each;
  EXPECT_EQ(reserve, 450 * kVocab);
  EXPECT_EQ(pace.May(3), 3 * each + reserve);
  pace.Took(2, 2 * each + reserve - 5);
  EXPECT_EQ(pace.May(1), each + 5);
  pace.Took(1, each - 10);
  EXPECT_EQ(pace.May(1), each + 15);
  pace.Took(1, each + 1000);  // it has failed
  EXPECT_EQ(pace.May(1), each);
  pace.Took(1, 0);
  EXPECT_EQ(pace.May(1), each + reserve) << "no more than at first";
}

TEST(GrammarPace, IsTriedBeforeAnAnswer) {
  const Counting quick(0), slow(8), late(40);
  const auto first = TryPace(quick, kVocab);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)[0], 1U << 31);
  EXPECT_EQ((*first)[1], 3U);
  EXPECT_EQ(quick.seen.size(), 32u);
  EXPECT_GT(*quick.seen.rbegin(), 30 + 40) << "not always the first of three";
  EXPECT_LT(*quick.seen.rbegin(), 30 + 90) << "nor the last";
  EXPECT_EQ(TryPace(slow, kVocab).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(TryPace(late, kVocab).ok());
  const Counting heavy(0, /*each_steps=*/AnswerPace(kVocab).each());
  EXPECT_TRUE(TryPace(heavy, kVocab).ok());
  EXPECT_LE(heavy.seen.size(), 3u) << "a compiler's thread has others to serve";
  const Counting over(0, /*each_steps=*/AnswerPace(kVocab).each() + 60'000);
  EXPECT_EQ(TryPace(over, kVocab).status().code(), StatusCode::kInvalidArgument)
      << "the reserve is for one token of such";
  const Counting slow_to_start(0, 0, AnswerPace(kVocab).each() / 16);
  EXPECT_EQ(TryPace(slow_to_start, kVocab).status().code(), StatusCode::kInvalidArgument);
}

// Of all answers of a request the first mask is made once, and is the one that a state makes.
TEST(GrammarPace, BeginsWithAMaskThatIsKept) {
  const auto grammar = MakeXgrammarCompile(ByteVocabulary())(
      {.kind = GrammarKind::kRegex, .text = "([a-z]+ ){1,500}"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const std::unique_ptr<GrammarState> state = (*grammar)->Start().value();
  std::vector<uint32_t> kept(MaskWords(257)), behind(kept.size()), again(kept.size());
  const auto filled = [&](std::vector<uint32_t>& words) {
    const PaceLimit limit(1'000'000);
    EXPECT_TRUE(state->FillMask(words).ok());
    return limit.taken();
  };
  EXPECT_EQ(filled(kept), 0);
  ASSERT_TRUE(state->Accept(TokenId{'q'}).value());
  EXPECT_GT(filled(behind), 0);
  EXPECT_NE(kept, behind);
  ASSERT_TRUE(state->Rollback(1).ok());
  EXPECT_EQ(filled(again), 0);
  EXPECT_EQ(kept, again);
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(kept[byte / 32] >> (byte % 32) & 1, byte >= 'a' && byte <= 'z') << byte;
  }
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
  EXPECT_NE(slow.status().message().find("too long for a token"), std::string::npos)
      << slow.status().message();
}

// They are work without a bound, for what no answer has.
TEST(GrammarPace, RulesHaveNoAttributes) {
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  for (const char* attributes :
       {"capture_hidden_stop_bytes=1", "capture", "capture=\"]\"", "max_tokens=3", "lazy"}) {
    const auto made =
        compile({.kind = GrammarKind::kEbnf,
                 .text = fmt::format("root ::= s\ns[{}] ::= \".\" s | [a-z]", attributes)});
    ASSERT_FALSE(made.ok()) << attributes;
    EXPECT_NE(made.status().message().find("no attributes"), std::string::npos)
        << made.status().message();
  }
}

// Each of many rules that begin at a byte looks at all others of that byte.
TEST(GrammarPace, CountsRulesThatBeginTogether) {
  std::string rules = "root ::= \"" + std::string(220, 'p') + "\" s \"z\"\ns ::=";
  std::string others;
  for (int i = 0; i < 2400; ++i) {
    const std::string name = fmt::format("r{}", i);
    rules += (i > 0 ? "|" : " ") + name;
    others += "\n" + name + "::=[.]*q";
  }
  GrammarVocabulary vocabulary = ByteVocabulary();
  vocabulary.tokens.push_back(std::string(128, '.'));
  vocabulary.size = 258;
  const auto grammar = MakeXgrammarCompile(vocabulary)(
      {.kind = GrammarKind::kEbnf, .text = rules + others + "\nq ::= \"x\" q | \"y\""});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const std::unique_ptr<GrammarState> state = (*grammar)->Start().value();
  for (int i = 0; i < 220; ++i) ASSERT_TRUE(state->Accept(TokenId{'p'}).value());
  const PaceLimit limit(20'000'000);  // five times what are states
  EXPECT_FALSE(state->Accept(TokenId{257}).ok());
}

// Thousands of states at each byte, of which each was a node of its own: one token took 9 s and 750
// MB, and the buckets that it had left made every later mask slow.
GrammarSpec ManyStates() {
  std::string rules = "root ::= u \".\"\nu ::= \"\" | \" \" u | \" \" w\nw ::=", others;
  for (int i = 0; i < 1000; ++i) {
    rules += fmt::format("{} r{}", i > 0 ? " |" : "", i);
    others += fmt::format("\nr{} ::= [ ]* \"0\"", i);
  }
  return {.kind = GrammarKind::kEbnf, .text = rules + others};
}

TEST(GrammarPace, BoundsMemoryWithinAToken) {
  GrammarVocabulary vocabulary = ByteVocabulary();
  vocabulary.tokens.emplace_back(128, ' ');
  vocabulary.size = 258;
  const auto grammar = MakeXgrammarCompile(vocabulary)(ManyStates());
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  constexpr int64_t kMiB = 1 << 20;
  for (const int64_t most : {2, 8}) {
    const std::unique_ptr<GrammarState> state = (*grammar)->Start().value();
    const int64_t before = ThreadBytes();
    (void)ThreadPeak();
    const PaceLimit limit(1'000'000'000, static_cast<size_t>(most * kMiB));
    const Result<bool> taken = state->Accept(TokenId{257});
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.status().message(),
              fmt::format("the grammar takes more than {} MiB for a token: simplify it", most));
    EXPECT_LT(ThreadPeak() - before, 3 * most * kMiB);
  }
  const PaceLimit limit(1'000'000, kMiB);
  std::string taken(kMiB / 2, 'x');
  EXPECT_TRUE(PaceLimit::Check().ok());
  taken.append(2 * kMiB, 'x');
  EXPECT_FALSE(PaceLimit::Check().ok());
  std::string().swap(taken);
  EXPECT_FALSE(PaceLimit::Check().ok()) << "what failed stays so";
}

// Each state is looked at once, however many there are.
TEST(GrammarPace, KnowsEachOfManyStates) {
  const auto grammar = MakeXgrammarCompile(ByteVocabulary())(ManyStates());
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const std::unique_ptr<GrammarState> state = (*grammar)->Start().value();
  for (int i = 0; i < 20; ++i) {
    const PaceLimit limit(1'000'000);
    ASSERT_TRUE(state->Accept(TokenId{' '}).value());
    EXPECT_LT(limit.taken(), 100'000 * (i + 1)) << "behind " << i;
  }
  for (const char c : {'0', '.'}) ASSERT_TRUE(state->Accept(TokenId{c}).value());
  EXPECT_FALSE(state->Accept(TokenId{'.'}).value());
  EXPECT_TRUE(state->Accept(kByteEos).value());
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
  const int64_t most = AnswerPace(vocabulary.size).May(1);
  int64_t taken = 0;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    const PaceLimit limit(most);
    ASSERT_TRUE(state->Accept(token("a")).value());
    status = state->FillMask(words);
    taken = limit.taken();
  }
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_GT(taken, most);
  EXPECT_LT(taken, most + 1000);
}

}  // namespace
}  // namespace fathom
