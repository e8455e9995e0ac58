#include <cmath>

#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(SiluMulTest);

std::vector<float> RunTokens(const TestBackend& b, const std::vector<float>& gate_up, int inter) {
  const int live = static_cast<int>(gate_up.size()) / (2 * inter);
  const TestTensor x(b.act(), {live + 1, 2 * inter}, gate_up);
  TestTensor out(b.act(), {live + 1, inter});
  RunOp(b, &Ops::silu_mul, {.gate_up = x, .live = Live(live), .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> result = out.Floats();
  result.resize(live * inter);
  return result;
}

TEST_P(SiluMulTest, IsTheFormula) {
  for (const int inter : {1, 13, 96, 1408}) {
    const std::vector<float> x = Normals(3 * 2 * inter, 1, 4);
    std::vector<float> expected;
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < inter; ++i) {
        const double gate = x[t * 2 * inter + i], up = x[t * 2 * inter + inter + i];
        expected.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) * up));
      }
    }
    const auto run = [&](const TestBackend& b) { return RunTokens(b, x, inter); };
    ExpectClose(run(GetParam()), expected, 1e-6 + Rounding(GetParam()));
    ExpectAsOracle(GetParam(), 1e-6 + Rounding(GetParam()), run);
  }
  EXPECT_TRUE(RunTokens(GetParam(), {}, 8).empty());
}

TEST_P(SiluMulTest, Extremes) {
  // Gates, then ups of one.
  const std::vector<float> out =
      RunTokens(GetParam(), {-200, -1000, 200, INFINITY, NAN, 0, 1, 1, 1, 1, 1, 1}, 6);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
  EXPECT_EQ(out[2], 200);
  EXPECT_EQ(out[3], INFINITY);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], 0);
}

TEST_P(SiluMulTest, ATokenDoesNotDependOnOthers) {
  const std::vector<float> x = Normals(33 * 2 * 37, 1);
  ExpectTokenInvariance(33, 37, [&](const std::vector<int>& tokens) {
    return RunTokens(GetParam(), PickVectors(x, 74, tokens), 37);
  });
}

}  // namespace
}  // namespace fathom
