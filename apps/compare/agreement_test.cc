#include "agreement.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fathom {
namespace {

using Top = std::vector<std::pair<TokenId, float>>;

float Log(double p) {
  return static_cast<float>(std::log(p));
}

// The likeliest first.
GeneratedToken Token(Top top) {
  return {.id = top.front().first,
          .logprobs = TokenLogprobs{.logprob = top.front().second, .top = top}};
}

TEST(AgreementTest, EqualAnswersAgree) {
  const Answer answer = {.tokens = {Token({{TokenId{5}, Log(0.5)}, {TokenId{6}, Log(0.25)}})},
                         .prompt = {{.logprob = -1, .top = {{TokenId{1}, -0.5f}}}}};
  const Agreement all = Compare({answer, answer}, 0);
  EXPECT_EQ(all.prompt.values, std::vector<double>{0});
  EXPECT_EQ(all.generated.max(), 0);
  EXPECT_NEAR(all.divergence.max(), 0, 1e-9);
  EXPECT_EQ(all.divergence.values.size(), 2);
  EXPECT_EQ(all.equal_tokens, 1);
  EXPECT_EQ(all.equal_answers, 1);
  EXPECT_EQ(Judge(all, {}).verdict, Verdict::kAgree);
}

TEST(AgreementTest, APartingIsATieOrAFault) {
  const GeneratedToken theirs = Token({{TokenId{5}, -0.7f}, {TokenId{6}, -0.8f}});
  const GeneratedToken near = Token({{TokenId{6}, -0.7f}, {TokenId{5}, -0.9f}});
  const GeneratedToken far = Token({{TokenId{6}, -0.1f}, {TokenId{5}, -3.0f}});
  const GeneratedToken unlisted = Token({{TokenId{6}, -0.1f}, {TokenId{7}, -3.0f}});
  const auto compare = [&](const GeneratedToken& ours) {
    return Compare({{.tokens = {theirs}, .prompt = {}}, {.tokens = {ours}, .prompt = {}}}, 3);
  };
  const Agreement tie = compare(near);
  ASSERT_EQ(tie.partings.size(), 1);
  EXPECT_EQ(tie.partings[0].prompt, 3);
  EXPECT_NEAR(*tie.partings[0].our_gap, 0.2, 1e-6);
  EXPECT_NEAR(*tie.partings[0].their_gap, 0.1, 1e-6);
  EXPECT_TRUE(tie.partings[0].IsTie({.tie = 0.31}));
  EXPECT_FALSE(tie.partings[0].IsTie({.tie = 0.29}));
  EXPECT_NEAR(tie.generated.max(), 0.2, 1e-6);  // of their token, on both sides
  EXPECT_EQ(Judge(tie, {.mean = 1, .divergence = 9, .tie = 0.5}).verdict, Verdict::kAgree);
  EXPECT_EQ(Judge(compare(far), {.mean = 9, .divergence = 9, .tie = 0.5}).verdict,
            Verdict::kDiffer);
  const Agreement fault = compare(unlisted);
  EXPECT_FALSE(fault.partings[0].our_gap);
  EXPECT_TRUE(fault.generated.values.empty());
  // Theirs is not the likeliest by their own numbers, which are ours.
  GeneratedToken odd = far;
  odd.id = TokenId{5};
  odd.logprobs->logprob = -3.0f;
  const Agreement negative =
      Compare({{.tokens = {odd}, .prompt = {}}, {.tokens = {far}, .prompt = {}}}, 0);
  EXPECT_NEAR(*negative.partings[0].their_gap, -2.9, 1e-6);
  EXPECT_FALSE(negative.partings[0].IsTie({}));
  EXPECT_EQ(Judge(fault, {.mean = 9, .divergence = 9, .tie = 9}).verdict, Verdict::kDiffer);
}

TEST(AgreementTest, FarLogprobsDifferThoughTokensAreEqual) {
  const Agreement all = Compare({{.tokens = {Token({{TokenId{5}, -0.1f}})}, .prompt = {}},
                                 {.tokens = {Token({{TokenId{5}, -0.6f}})}, .prompt = {}}},
                                0);
  EXPECT_EQ(all.equal_answers, 1);
  EXPECT_EQ(Judge(all, {.divergence = 9}).verdict, Verdict::kDiffer);
  EXPECT_EQ(Judge(all, {.mean = 9}).verdict, Verdict::kDiffer);
  EXPECT_EQ(Judge(all, {.mean = 9, .divergence = 9}).verdict, Verdict::kAgree);
}

TEST(AgreementTest, WithoutLogprobsTokensAloneAreJudged) {
  const GeneratedToken bare{.id = TokenId{5}};
  const Answer theirs{.tokens = {bare}, .prompt = {}};
  const Answer same{.tokens = {Token({{TokenId{5}, -0.1f}})}, .prompt = {}};
  const Answer other{.tokens = {Token({{TokenId{6}, -0.1f}, {TokenId{5}, -4.0f}})}, .prompt = {}};
  EXPECT_EQ(Judge(Compare({theirs, same}, 0), {}).verdict, Verdict::kUnknown);
  EXPECT_EQ(Judge(Compare({theirs, other}, 0), {}).verdict, Verdict::kDiffer);
  EXPECT_EQ(Judge({}, {}).verdict, Verdict::kUnknown);
}

TEST(AgreementTest, DivergenceIsThatOfWhatBothList) {
  const TokenLogprobs p{.logprob = 0, .top = {{TokenId{1}, Log(0.5)}, {TokenId{2}, Log(0.3)}}};
  const TokenLogprobs q{.logprob = 0, .top = {{TokenId{1}, Log(0.4)}, {TokenId{3}, Log(0.3)}}};
  const double expected = 0.5 * std::log(0.5 / 0.4) + 0.5 * std::log(0.5 / 0.6);
  EXPECT_NEAR(*CoarseDivergence(p, q), expected, 1e-6);
  EXPECT_FALSE(CoarseDivergence(p, {}));
}

TEST(AgreementTest, RepeatsAreHeldAgainstEachOtherUntilTheyPart) {
  const GeneratedToken a = Token({{TokenId{5}, -1.0f}}), near = Token({{TokenId{5}, -1.5f}});
  const GeneratedToken b = Token({{TokenId{6}, -2.0f}});
  Repeats repeats;
  repeats.Add(std::vector{a, a, b}, std::vector{a, near, b});
  repeats.Add(std::vector{a, b, a}, std::vector{near, a, a});
  repeats.Add(std::vector{a}, std::vector{a, a});
  repeats.Add({}, {});
  EXPECT_EQ(repeats.answers, 4);
  EXPECT_EQ(repeats.equal_answers, 2);
  EXPECT_EQ(repeats.generated.values, (std::vector<double>{0, 0.5, 0, 0.5, 0}));
}

TEST(AgreementTest, SpreadsAreOfAllPrompts) {
  Spread spread;
  for (int i = 1; i <= 200; ++i) spread.Add(0, i);
  EXPECT_EQ(spread.max(), 200);
  EXPECT_EQ(spread.p99(), 198);
  EXPECT_EQ(spread.mean(), 100.5);
  Agreement all;
  Agreement one;
  one.prompt = spread;
  one.tokens = 7;
  all.Add(one);
  all.Add(one);
  EXPECT_EQ(all.prompt.values.size(), 400);
  EXPECT_EQ(all.tokens, 14);
}

}  // namespace
}  // namespace fathom
