#include <cmath>

#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(RopeTest);

constexpr int kMaxPositions = 300;

std::vector<float> CosSin(int width) {
  std::vector<float> table;
  for (int p = 0; p < kMaxPositions; ++p) {
    for (int i = 0; i < width; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * (i % (width / 2)) / width);
      // A factor such as YaRN's is part of the table.
      table.push_back(
          static_cast<float>(1.25 * (i < width / 2 ? std::cos(angle) : std::sin(angle))));
    }
  }
  return table;
}

struct Case {
  int heads, width;
  std::vector<float> x;  // [tokens, heads, width]
  std::vector<int> positions;
};

Case MakeCase(int heads, int width, const std::vector<int>& positions) {
  const auto tokens = static_cast<int64_t>(positions.size());
  return {heads, width, Normals(tokens * heads * width, 1), positions};
}

// The rotated part lies behind 8 other channels of each head, as in a query.
std::vector<float> RunTokens(const TestBackend& b, const Case& c, const std::vector<int>& tokens) {
  const int live = static_cast<int>(tokens.size()), wide = c.width + 8;
  std::vector<float> padded(live * c.heads * wide, 3);
  std::vector<int32_t> positions;
  for (int i = 0; i < live; ++i) {
    positions.push_back(c.positions[tokens[i]]);
    for (int h = 0; h < c.heads; ++h) {
      std::copy_n(&c.x[(tokens[i] * c.heads + h) * c.width], c.width,
                  &padded[(i * c.heads + h) * wide + 8]);
    }
  }
  const TestTensor x(b.act(), {live + 1, c.heads, wide}, padded);
  RunOp(b, &Ops::rope,
        {.x = x.view().Slice(2, 8, wide),
         .positions = Ints({live + 1}, positions),
         .cos_sin = TestTensor(DType::kF32, {kMaxPositions, 2, c.width / 2}, CosSin(c.width)),
         .live = Live(live)});
  EXPECT_TRUE(x.PoisonedFrom(live));
  const std::vector<float> all = x.Floats();
  std::vector<float> rows;
  for (int i = 0; i < live * c.heads; ++i) {
    for (int j = 0; j < 8; ++j) EXPECT_EQ(all[i * wide + j], 3);
    rows.insert(rows.end(), &all[i * wide + 8], &all[i * wide + 8] + c.width);
  }
  return rows;
}

TEST_P(RopeTest, RotatesInterleavedPairs) {
  for (const auto& [heads, width] : {std::pair{1, 64}, {16, 64}, {3, 2}, {2, 10}}) {
    const Case c = MakeCase(heads, width, {0, 1, 17, 299});
    std::vector<float> expected;
    for (int t = 0; t < 4; ++t) {
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < width; i += 2) {
          const double angle = c.positions[t] * std::pow(10000.0, -1.0 * i / width);
          const double a = c.x[(t * heads + h) * width + i];
          const double b = c.x[(t * heads + h) * width + i + 1];
          expected.push_back(
              static_cast<float>(1.25 * (a * std::cos(angle) - b * std::sin(angle))));
          expected.push_back(
              static_cast<float>(1.25 * (a * std::sin(angle) + b * std::cos(angle))));
        }
      }
    }
    const auto run = [&](const TestBackend& b) { return RunTokens(b, c, Range(4)); };
    ExpectClose(run(GetParam()), expected, 1e-6 + Rounding(GetParam()));
    ExpectAsOracle(GetParam(), 1e-6 + Rounding(GetParam()), run);
  }
}

TEST_P(RopeTest, ATokenDoesNotDependOnOthers) {
  std::vector<int> positions;
  for (int t = 0; t < 33; ++t) positions.push_back(t * 7);
  const Case c = MakeCase(3, 14, positions);
  ExpectRowInvariance(
      33, 3 * 14, [&](const std::vector<int>& tokens) { return RunTokens(GetParam(), c, tokens); });
  EXPECT_TRUE(RunTokens(GetParam(), c, {}).empty());
}

}  // namespace
}  // namespace fathom
