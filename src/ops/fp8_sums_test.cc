#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ops/test_hopper_sum.h"

namespace fathom {
namespace {

using Product = std::pair<uint8_t, uint8_t>;

constexpr uint8_t PowerOfTwo(int exponent) {
  return static_cast<uint8_t>((exponent + 7) << 3);
}
constexpr uint8_t kNegative = 0x80, kOneAndAHalf = 0x3c, kLeast = 0x01;  // 2^-9
constexpr Product kLarge = {PowerOfTwo(8), PowerOfTwo(8)};               // 2^16

// The sum of products of codes, which stand in a run from channel `begin` on.
float Sum(const std::vector<Product>& products, size_t begin = 0) {
  std::vector<uint8_t> x(128), w(128);
  for (const auto& [a, b] : products) {
    x[begin] = a;
    w[begin++] = b;
  }
  return HopperSum(x, w);
}

TEST(HopperSumTest, SmallSumsAreExact) {
  EXPECT_EQ(Sum({}), 0.0f);
  EXPECT_EQ(Sum({{kOneAndAHalf, PowerOfTwo(1) | kNegative}}), -3.0f);
  EXPECT_EQ(Sum({{kLeast, kLeast}}), 0x1p-18f);
  EXPECT_EQ(Sum({{kLeast, PowerOfTwo(8)}, {kOneAndAHalf, kOneAndAHalf}}), 2.75f);
}

TEST(HopperSumTest, BitsFarBelowTheLargestExponentAreCutTowardsZero) {
  EXPECT_EQ(Sum({kLarge, {PowerOfTwo(3), PowerOfTwo(0)}}), 65544.0f);
  EXPECT_EQ(Sum({kLarge, {PowerOfTwo(2), PowerOfTwo(0)}}), 65536.0f);
  EXPECT_EQ(Sum({kLarge, {kOneAndAHalf, PowerOfTwo(3) | kNegative}}), 65528.0f);  // -12 to -8
}

TEST(HopperSumTest, SumsKeepFourteenBits) {
  EXPECT_EQ(Sum({kLarge, kLarge, kLarge, {PowerOfTwo(3), PowerOfTwo(0)}}), 196608.0f);
}

TEST(HopperSumTest, AnInstructionAddsThirtyTwoProductsToWhatIsThere) {
  constexpr Product kMinus = {PowerOfTwo(8), PowerOfTwo(8) | kNegative};
  constexpr Product kSmall = {PowerOfTwo(2), PowerOfTwo(0)};
  EXPECT_EQ(Sum({kLarge, kMinus, kSmall, kSmall}), 0.0f);
  // From channel 30 on, the small ones are of another instruction than those that cancel.
  EXPECT_EQ(Sum({kLarge, kMinus, kSmall, kSmall}, 30), 8.0f);
  // What is there has an exponent, too.
  EXPECT_EQ(Sum({kLarge, kSmall}, 31), 65536.0f);
}

}  // namespace
}  // namespace fathom
