#include "cpu/simd.h"  // must come before Highway

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/vector_math_test.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

float ExpOf(float x) {
  const hn::ScalableTag<float> d;
  return hn::GetLane(Exp(d, hn::Set(d, x)));
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
namespace {

HWY_EXPORT(ExpOf);

class ExpTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(Targets, ExpTest, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(ExpTest, WithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (float x = -87.3f; x < 88.7f; x += 0.00037f) {
    const double exact = std::exp(double{x});
    const float y = HWY_DYNAMIC_DISPATCH(ExpOf)(x);
    const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(y) & 0x7f800000u);
    worst = std::max(worst, std::abs(y - exact) / (below * 0x1p-23));
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(ExpTest, Borders) {
  const auto exp = HWY_DYNAMIC_DISPATCH(ExpOf);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp(0), 1);
  EXPECT_EQ(exp(-0.0f), 1);
  EXPECT_EQ(exp(kInf), kInf);
  EXPECT_EQ(exp(1e30f), kInf);
  EXPECT_EQ(exp(88.8f), kInf);
  EXPECT_EQ(exp(-kInf), 0);
  EXPECT_EQ(exp(-1e30f), 0);
  EXPECT_TRUE(std::isnan(exp(NAN)));
  EXPECT_NEAR(exp(-95), std::exp(-95.0), 2e-45);  // subnormal
}

}  // namespace
}  // namespace fathom
#endif  // HWY_ONCE
