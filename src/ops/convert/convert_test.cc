#include <cmath>
#include <limits>

#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(ConvertTest);

// [live, width] from one type to the other.
std::vector<float> RunTokens(const TestBackend& b, DType from, DType to,
                             const std::vector<float>& values, int width) {
  const int live = static_cast<int>(values.size()) / width;
  const TestTensor x(from, {live + 2, width}, values);
  TestTensor out(to, {live + 2, width});
  RunOp(b, &Ops::convert, {.x = x, .live = Live(live), .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> result = out.Floats();
  result.resize(values.size());
  return result;
}

std::vector<float> Rounded(std::vector<float> x) {
  for (float& value : x) value = ToFloat(ToBF16(value));
  return x;
}

TEST_P(ConvertTest, RoundsToNearestAndBackIsExact) {
  for (const int width : {1, 96, 513}) {
    std::vector<float> x = Normals(5 * width, 3, 4);
    for (float& value : x) value *= 1.01f;  // BF16 until then
    EXPECT_NE(Rounded(x), x);
    EXPECT_EQ(RunTokens(GetParam(), DType::kF32, DType::kBF16, x, width), Rounded(x));
    EXPECT_EQ(RunTokens(GetParam(), DType::kBF16, DType::kF32, x, width), Rounded(x));
  }
  EXPECT_TRUE(RunTokens(GetParam(), DType::kF32, DType::kBF16, {}, 8).empty());
}

TEST_P(ConvertTest, TiesAndExtremes) {
  constexpr float kUlp = 1.0f / 128;  // of BF16 at 1
  const std::vector<float> out = RunTokens(
      GetParam(), DType::kF32, DType::kBF16,
      {1 + kUlp / 2, 1 + 3 * kUlp / 2, -0.0f, std::numeric_limits<float>::max(), INFINITY, NAN}, 6);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 1 + 2 * kUlp);
  EXPECT_TRUE(out[2] == 0 && std::signbit(out[2]));
  EXPECT_EQ(out[3], INFINITY);
  EXPECT_EQ(out[4], INFINITY);
  EXPECT_TRUE(std::isnan(out[5]));
}

}  // namespace
}  // namespace fathom
