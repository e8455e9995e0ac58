#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(RouteTest);

struct Case {
  int hidden, experts, topk;
  RouterScoring scoring = RouterScoring::kSigmoid;
  RouterSelection selection = RouterSelection::kGroupTopTwoBiased;
  int n_group = 1, topk_group = 1;
  bool norm = true;
  float scaling = 1;
  std::vector<float> x, gate, bias;
  DType gate_type = DType::kBF16;  // where activations are

  int tokens() const { return static_cast<int>(x.size()) / hidden; }
};

struct Output {
  std::vector<int32_t> ids;
  std::vector<float> weights;

  std::vector<int32_t> Ids(int token, int topk) const {
    return {ids.begin() + token * topk, ids.begin() + (token + 1) * topk};
  }
};

Output RunTokens(const TestBackend& b, const Case& c, const std::vector<int>& tokens) {
  const int live = static_cast<int>(tokens.size());
  const DType gate_type = b.act() == DType::kBF16 ? c.gate_type : DType::kF32;
  const TestTensor gate(gate_type, {c.experts, c.hidden}, c.gate);
  TestTensor bias, ids(DType::kI32, {live + 2, c.topk}), weights(DType::kF32, {live + 2, c.topk});
  if (!c.bias.empty()) bias = TestTensor(DType::kF32, {c.experts}, c.bias);
  RunOp(b, &Ops::route,
        {.x = TestTensor(b.act(), {live + 2, c.hidden}, PickVectors(c.x, c.hidden, tokens)),
         .gate = gate,
         .bias = bias,
         .scoring = c.scoring,
         .selection = c.selection,
         .n_group = c.n_group,
         .topk_group = c.topk_group,
         .norm_topk_prob = c.norm,
         .scaling = c.scaling,
         .live = Live(live),
         .ids = ids,
         .weights = weights});
  EXPECT_TRUE(ids.PoisonedFrom(live));
  EXPECT_TRUE(weights.PoisonedFrom(live));
  Output output = {ids.Ints(), weights.Floats()};
  output.ids.resize(live * c.topk);
  output.weights.resize(live * c.topk);
  return output;
}

Output RunAll(const TestBackend& b, const Case& c) {
  return RunTokens(b, c, Range(c.tokens()));
}

// Indices in order of falling key, ties to the lower.
std::vector<int> Order(const std::vector<double>& keys) {
  std::vector<int> order = Range(static_cast<int>(keys.size()));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] > keys[b]; });
  return order;
}

// The three routers, in double.
Output Formula(const Case& c) {
  Output output;
  for (int t = 0; t < c.tokens(); ++t) {
    std::vector<double> scores(c.experts);
    for (int e = 0; e < c.experts; ++e) {
      for (int i = 0; i < c.hidden; ++i) {
        scores[e] += double{c.x[t * c.hidden + i]} * c.gate[e * c.hidden + i];
      }
      if (c.scoring == RouterScoring::kSigmoid) scores[e] = 1 / (1 + std::exp(-scores[e]));
    }
    if (c.scoring == RouterScoring::kSoftmax) {
      double sum = 0;
      for (double& s : scores) sum += s = std::exp(s);
      for (double& s : scores) s /= sum;
    }
    std::vector<double> choice = scores;
    for (size_t e = 0; e < c.bias.size(); ++e) choice[e] += c.bias[e];
    if (c.selection != RouterSelection::kGreedy) {
      const int size = c.experts / c.n_group;
      std::vector<double> groups;
      for (int g = 0; g < c.n_group; ++g) {
        std::vector<double> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
        std::sort(group.rbegin(), group.rend());
        groups.push_back(c.selection == RouterSelection::kGroupMax ? group[0]
                                                                   : group[0] + group[1]);
      }
      const std::vector<int> order = Order(groups);
      for (int i = c.topk_group; i < c.n_group; ++i) {
        for (int e = 0; e < size; ++e) choice[order[i] * size + e] = -INFINITY;
      }
    }
    const std::vector<int> order = Order(choice);
    double sum = 0;
    for (int j = 0; j < c.topk; ++j) sum += scores[order[j]];
    for (int j = 0; j < c.topk; ++j) {
      output.ids.push_back(order[j]);
      output.weights.push_back(
          static_cast<float>(scores[order[j]] / (c.norm ? sum + 1e-20 : 1) * c.scaling));
    }
  }
  return output;
}

void ExpectFormula(const TestBackend& b, const Case& c, double tolerance = 2e-6) {
  const Output expected = Formula(c), got = RunAll(b, c);
  EXPECT_EQ(got.ids, expected.ids);
  ExpectClose(got.weights, expected.weights, tolerance);
  EXPECT_EQ(got.ids, RunAll(Oracle(), c).ids);
  ExpectAsOracle(b, tolerance, [&](const TestBackend& each) { return RunAll(each, c).weights; });
}

Case V3(int tokens, int experts, int topk, int n_group, int topk_group) {
  return {.hidden = 128,
          .experts = experts,
          .topk = topk,
          .n_group = n_group,
          .topk_group = topk_group,
          .scaling = 2.5f,
          .x = Normals(tokens * 128, 1),
          .gate = Normals(experts * 128, 2, 0.1f),
          .bias = Normals(experts, 3, 0.2f)};
}

TEST_P(RouteTest, V3) {
  ExpectFormula(GetParam(), V3(20, 256, 8, 8, 4));
  ExpectFormula(GetParam(), V3(20, 16, 4, 4, 2));
  ExpectFormula(GetParam(), V3(20, 16, 4, 1, 1));
  ExpectFormula(GetParam(), V3(5, 8, 8, 4, 4));  // all of them
  ExpectFormula(GetParam(), V3(5, 2, 1, 1, 1));
}

TEST_P(RouteTest, NegativeBiasedScores) {
  // All biased scores are below zero: a mask of 0 would prefer the experts it should exclude.
  Case c = V3(20, 32, 4, 8, 2);
  for (float& bias : c.bias) bias -= 5;
  ExpectFormula(GetParam(), c);
  const Output out = RunAll(GetParam(), c);
  for (int t = 0; t < 20; ++t) {
    std::vector<int> groups;
    for (const int32_t id : out.Ids(t, 4)) groups.push_back(id / 4);
    std::sort(groups.begin(), groups.end());
    EXPECT_LE(std::unique(groups.begin(), groups.end()) - groups.begin(), 2);
  }
}

TEST_P(RouteTest, BiasChoosesButDoesNotWeigh) {
  Case c = V3(3, 8, 2, 1, 1);
  c.bias = {0, 0, 0, 9, 0, 8, 0, 0};
  c.norm = false;
  c.scaling = 1;
  const Output out = RunAll(GetParam(), c);
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(out.Ids(t, 2), (std::vector<int32_t>{3, 5}));
    EXPECT_LT(out.weights[2 * t], 1);
  }
}

TEST_P(RouteTest, V2) {
  Case c = V3(20, 160, 6, 8, 3);
  c.scoring = RouterScoring::kSoftmax;
  c.selection = RouterSelection::kGroupMax;
  c.norm = false;
  c.scaling = 16;
  c.bias.clear();
  ExpectFormula(GetParam(), c);
}

TEST_P(RouteTest, V2Lite) {
  Case c = V3(20, 64, 6, 1, 1);
  c.scoring = RouterScoring::kSoftmax;
  c.selection = RouterSelection::kGreedy;
  c.bias.clear();
  for (const float scaling : {1.0f, 2.5f}) {
    c.scaling = scaling;
    for (const bool norm : {false, true}) {
      c.norm = norm;
      ExpectFormula(GetParam(), c);
    }
  }
}

TEST_P(RouteTest, Shapes) {
  const auto check = [](int tokens, int experts, int hidden) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens, gate of " + std::to_string(experts) + " x " +
                 std::to_string(hidden));
    Case c = V3(0, experts, 8, 4, 2);
    c.hidden = hidden;
    c.x = Normals(tokens * hidden, 4);
    c.gate = Normals(experts * hidden, 5, 0.02f);
    ExpectFormula(GetParam(), c, 1e-5);
    // What BF16 has not room for.
    for (float& g : c.gate) g *= 1.2345678f;
    c.gate_type = DType::kF32;
    ExpectFormula(GetParam(), c, 1e-5);
  };
  for (const auto& [experts, hidden] : {std::pair{64, 2048}, {160, 5120}, {256, 7168}}) {
    check(9, experts, hidden);
  }
  for (const int tokens : {7, 9, 140}) {
    for (const auto& [experts, hidden] : {std::pair{300, 512}, {28, 333}, {36, 1000}}) {
      check(tokens, experts, hidden);
    }
  }
}

TEST_P(RouteTest, GatesOfBothTypesGiveTheSameBits) {
  for (const int tokens : {3, 20, 200}) {
    Case c = V3(tokens, 24, 6, 4, 2);
    const Output narrow = RunAll(GetParam(), c);
    c.gate_type = DType::kF32;
    ExpectSameBits(RunAll(GetParam(), c).weights, narrow.weights);
  }
}

TEST_P(RouteTest, TiesGoToTheLowerIndex) {
  for (const auto selection : {RouterSelection::kGreedy, RouterSelection::kGroupMax,
                               RouterSelection::kGroupTopTwoBiased}) {
    Case c = V3(3, 12, 4, 3, 2);
    c.selection = selection;
    c.bias.assign(12, 0);
    // Equal vectors of the gate give equal scores.
    for (int e = 1; e < 12; ++e) std::copy_n(&c.gate[0], 128, &c.gate[e * 128]);
    for (int t = 0; t < 3; ++t) {
      EXPECT_EQ(RunAll(GetParam(), c).Ids(t, 4), (std::vector<int32_t>{0, 1, 2, 3}));
    }
    // The second group wins; the first and the third tie for the second place.
    for (int e = 4; e < 8; ++e) c.bias[e] = 1;
    c.topk = 8;
    for (int t = 0; t < 3; ++t) {
      EXPECT_EQ(RunAll(GetParam(), c).Ids(t, 8), (std::vector<int32_t>{4, 5, 6, 7, 0, 1, 2, 3}));
    }
  }
}

TEST_P(RouteTest, NanRanksBelowEveryNumber) {
  Case c = V3(4, 8, 3, 1, 1);
  c.selection = RouterSelection::kGreedy;
  for (float& bias : c.bias) bias -= 3;
  c.gate[2 * 128] = NAN;
  c.gate[5 * 128 + 9] = NAN;
  const Output out = RunAll(GetParam(), c);
  for (int t = 0; t < 4; ++t) {
    for (const int32_t id : out.Ids(t, 3)) EXPECT_TRUE(id != 2 && id != 5);
    for (int j = 0; j < 3; ++j) EXPECT_TRUE(std::isfinite(out.weights[t * 3 + j]));
  }
  // With all of them wanted the NaN come last, the lower first.
  c.topk = 8;
  EXPECT_EQ(RunAll(GetParam(), c).ids[6], 2);
  EXPECT_EQ(RunAll(GetParam(), c).ids[7], 5);
}

TEST_P(RouteTest, ATokenOfNanStaysInRangeAndAlone) {
  for (const auto scoring : {RouterScoring::kSigmoid, RouterScoring::kSoftmax}) {
    Case c = V3(3, 16, 4, 4, 2);
    c.scoring = scoring;
    const Output clean = RunAll(GetParam(), c);
    c.x[128 + 5] = NAN;
    const Output out = RunAll(GetParam(), c);
    for (const int t : {0, 2}) EXPECT_EQ(out.Ids(t, 4), clean.Ids(t, 4));
    ExpectSameBits(PickVectors(out.weights, 4, {0, 2}), PickVectors(clean.weights, 4, {0, 2}));
    std::vector<int32_t> ids = out.Ids(1, 4);
    EXPECT_EQ(ids, RunAll(Oracle(), c).Ids(1, 4));
    std::sort(ids.begin(), ids.end());
    EXPECT_TRUE(std::unique(ids.begin(), ids.end()) == ids.end());
    for (int j = 0; j < 4; ++j) {
      EXPECT_TRUE(ids[j] >= 0 && ids[j] < 16);
      EXPECT_TRUE(std::isnan(out.weights[4 + j]));
    }
  }
}

TEST_P(RouteTest, VanishingScoresGiveZerosNotNan) {
  // sigmoid(-200) is 0 in fp32: the sum needs its 1e-20.
  Case c = V3(1, 8, 2, 1, 1);
  c.x.assign(128, 1);
  c.gate.assign(8 * 128, -200.0f / 128);
  EXPECT_EQ(RunAll(GetParam(), c).weights, (std::vector<float>{0, 0}));
}

TEST_P(RouteTest, ATokenDoesNotDependOnOthers) {
  for (const int hidden : {128, 77}) {
    Case c = V3(45, 24, 4, 4, 2);
    c.hidden = hidden;
    c.x.resize(45 * hidden);
    c.gate.resize(24 * hidden);
    for (const DType type : {DType::kBF16, DType::kF32}) {
      c.gate_type = type;
      ExpectTokenInvariance(45, 4, [&](const std::vector<int>& tokens) {
        return RunTokens(GetParam(), c, tokens).weights;
      });
      ExpectTokenInvariance(45, 4, [&](const std::vector<int>& tokens) {
        const std::vector<int32_t> ids = RunTokens(GetParam(), c, tokens).ids;
        return std::vector<float>(ids.begin(), ids.end());
      });
    }
    EXPECT_TRUE(RunTokens(GetParam(), c, {}).ids.empty());
  }
}

TEST_P(RouteTest, ATokenDoesNotDependOnThousands) {
  for (const auto& [experts, hidden] : {std::pair{24, 1160}, {200, 128}}) {
    Case c = V3(0, experts, 6, 4, 2);
    c.hidden = hidden;
    c.x = Normals(4096 * hidden, 1);
    c.gate = Normals(experts * hidden, 2, 0.1f);
    const Output all = RunAll(GetParam(), c);
    for (const int count : {1, 2, 8, 11, 63, 512, 1029}) {
      SCOPED_TRACE(count);
      const Output some = RunTokens(GetParam(), c, Range(count));
      ExpectSameBits(some.weights, PickVectors(all.weights, 6, Range(count)));
      EXPECT_TRUE(std::equal(some.ids.begin(), some.ids.end(), all.ids.begin()));
    }
  }
}

// Small enough for compute-sanitizer: more than 128 tokens take another kernel.
TEST_P(RouteTest, ManyTokensOfASmallGate) {
  ExpectFormula(GetParam(), V3(130, 24, 4, 4, 2));
}

}  // namespace
}  // namespace fathom
