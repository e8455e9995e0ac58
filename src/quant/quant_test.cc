#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "quant/e4m3.h"
#include "quant/weight_tensor.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(E4M3, DecodesTheFormat) {
  EXPECT_EQ(ToFloat(E4M3{0x00}), 0.0f);
  EXPECT_TRUE(std::signbit(ToFloat(E4M3{0x80})));
  EXPECT_EQ(ToFloat(E4M3{0x01}), 0x1p-9f);
  EXPECT_EQ(ToFloat(E4M3{0x07}), 7 * 0x1p-9f);
  EXPECT_EQ(ToFloat(E4M3{0x08}), 0x1p-6f);
  EXPECT_EQ(ToFloat(E4M3{0x38}), 1.0f);
  EXPECT_EQ(ToFloat(E4M3{0x39}), 1.125f);
  EXPECT_EQ(ToFloat(E4M3{0x7e}), 448.0f);
  EXPECT_EQ(ToFloat(E4M3{0xfe}), -448.0f);
  EXPECT_TRUE(std::isnan(ToFloat(E4M3{0x7f})));
  EXPECT_TRUE(std::isnan(ToFloat(E4M3{0xff})));
}

TEST(E4M3, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(ToE4M3(ToFloat(E4M3{static_cast<uint8_t>(code)})).bits, code);
  }
}

// Between two neighbouring values lies one border, their middle: just below it rounds down, just
// above it up, and the middle itself to the even code. Together with monotonicity in between that
// is the whole function.
TEST(E4M3, RoundsToNearestEvenAtEveryBorder) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = ToFloat(E4M3{static_cast<uint8_t>(code)});
    const float high = ToFloat(E4M3{static_cast<uint8_t>(code + 1)});
    const float middle = (low + high) / 2;  // exact
    for (const int sign : {0, 0x80}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(ToE4M3(s * std::nextafter(middle, 0.0f)).bits, sign | code);
      EXPECT_EQ(ToE4M3(s * std::nextafter(middle, kInf)).bits, sign | (code + 1));
      EXPECT_EQ(ToE4M3(s * middle).bits, sign | (code + (code & 1)));
    }
  }
}

TEST(E4M3, SaturatesAndKeepsNan) {
  for (const float x : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, kInf}) {
    EXPECT_EQ(ToE4M3(x).bits, 0x7e);
    EXPECT_EQ(ToE4M3(-x).bits, 0xfe);
  }
  EXPECT_EQ(ToE4M3(kNan).bits, 0x7f);
  EXPECT_EQ(ToE4M3(std::copysign(kNan, -1.0f)).bits, 0xff);
  EXPECT_EQ(ToE4M3(std::numeric_limits<float>::denorm_min()).bits, 0x00);
  EXPECT_EQ(ToE4M3(-0.0f).bits, 0x80);
}

TEST(E4M3, RoundsScalesUpToPowersOfTwo) {
  EXPECT_EQ(RoundUpToPowerOfTwo(1.0f), 1.0f);
  EXPECT_EQ(RoundUpToPowerOfTwo(std::nextafter(1.0f, 2.0f)), 2.0f);
  EXPECT_EQ(RoundUpToPowerOfTwo(0.75f), 1.0f);
  EXPECT_EQ(RoundUpToPowerOfTwo(1e-10f / 448), 0x1p-42f);
  EXPECT_EQ(RoundUpToPowerOfTwo(kInf), kInf);
  EXPECT_TRUE(std::isnan(RoundUpToPowerOfTwo(kNan)));
}

// Codes and scale computed with torch 2.x: (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).
TEST(QuantizeRun, MatchesTorch) {
  const std::vector<float> x = {0.1f, -0.2f, 0.3f, -1.7f, 0.0f, 1e-5f, 1.2345f, -0.01f};
  std::vector<uint8_t> q(x.size());
  EXPECT_EQ(QuantizeRun(x, false, q.data()), std::bit_cast<float>(0x3b78af8bu));
  EXPECT_EQ(q, (std::vector<uint8_t>{0x5d, 0xe5, 0x6a, 0xfe, 0x00, 0x01, 0x7a, 0xc3}));
  EXPECT_EQ(QuantizeRun(x, true, q.data()), 0x1p-8f);
  EXPECT_EQ(q, (std::vector<uint8_t>{0x5d, 0xe5, 0x6a, 0xfe, 0x00, 0x01, 0x7a, 0xc2}));
}

TEST(QuantizeRun, ZerosNansAndInfinities) {
  std::vector<uint8_t> q(3);
  EXPECT_EQ(QuantizeRun(std::vector<float>{0, 0, 0}, false, q.data()), 1e-10f / 448);
  EXPECT_EQ(q, (std::vector<uint8_t>{0, 0, 0}));

  for (const bool ue8m0 : {false, true}) {
    EXPECT_TRUE(std::isnan(QuantizeRun(std::vector<float>{1, kNan, 500}, ue8m0, q.data())));
    for (const uint8_t code : q) EXPECT_EQ(code & 0x7f, 0x7f);
    EXPECT_EQ(QuantizeRun(std::vector<float>{1, kInf, 2}, ue8m0, q.data()), kInf);
    EXPECT_EQ(q[0], 0);
    EXPECT_EQ(q[1] & 0x7f, 0x7f);
    EXPECT_EQ(q[2], 0);
  }
  EXPECT_EQ(QuantizeRun({}, false, q.data()), 1e-10f / 448);
}

TEST(Groups, OfAMatrixThatBeginsInsideOne) {
  constexpr Groups kCut = {.size = 128, .offset = 100};
  EXPECT_EQ(kCut.Count(28), 1);
  EXPECT_EQ(kCut.Count(29), 2);
  EXPECT_EQ(kCut.Of(27), 0);
  EXPECT_EQ(kCut.Of(28), 1);
  EXPECT_EQ(kCut.Begin(0), 0);
  EXPECT_EQ(kCut.Begin(1), 28);
  EXPECT_EQ(kCut.Begin(2), 156);
  EXPECT_EQ(kCut.End(0, 20), 20);
  EXPECT_EQ(kCut.End(0, 200), 28);
  EXPECT_EQ(kCut.End(2, 200), 200);
}

TEST(WeightFormat, BytesPerWeight) {
  EXPECT_EQ(WeightFormat::kF32.bytes_per_weight(), 4);
  EXPECT_EQ(WeightFormat::kBF16.bytes_per_weight(), 2);
  EXPECT_EQ(WeightFormat::kFp8.bytes_per_weight(), 1 + 4.0 / (128 * 128));
  EXPECT_EQ(WeightFormat::kInt8.bytes_per_weight(), 1 + 4.0 / 128);
  EXPECT_EQ(WeightFormat::kInt4.bytes_per_weight(), 0.5 + 0.5 / 32 + 4.0 / 128);
}

// As AWQ and GPTQ store them: 4-bit codes, a scale and a 4-bit zero point per output and group.
constexpr WeightFormat kZeroPoints = {.values = WeightType::kInt4,
                                      .scales = {ScaleType::kF32, {.size = 1}, {.size = 128}},
                                      .zero_points = ZeroPoints::kPerGroup};

TEST(WeightFormat, OfZeroPointsPermutationsAndGlobalScales) {
  EXPECT_EQ(kZeroPoints.bytes_per_weight(), 0.5 + 4.0 / 128 + 0.5 / 128);
  EXPECT_FALSE(IsStoredFormat(kZeroPoints));
  EXPECT_EQ(Describe(kZeroPoints), "int4, scales per 1 x 128, zero points per group");

  WeightFormat format = kZeroPoints;
  format.permuted_channels = true;
  EXPECT_FALSE(format == kZeroPoints);
  EXPECT_EQ(format.bytes_per_weight(), kZeroPoints.bytes_per_weight());
  EXPECT_EQ(Describe(format), "int4, scales per 1 x 128, zero points per group, permuted channels");

  format = WeightFormat::kFp8;
  format.outer_scales = {ScaleType::kF32, {.size = Groups::kAll}, {.size = Groups::kAll}};
  EXPECT_EQ(format.outer_scales.channels.Count(1 << 20), 1);
  EXPECT_EQ(Describe(format), "fp8, scales per 128 x 128, outer scales per all x all");
  EXPECT_LT(format.bytes_per_weight() - WeightFormat::kFp8.bytes_per_weight(), 1e-12);
}

TEST(WeightFormat, IsStoredWhereverInItsGroupsAPartBegins) {
  WeightFormat format = WeightFormat::kFp8;
  format.scales.outputs.offset = 100, format.scales.channels.offset = 7;
  EXPECT_TRUE(IsStoredFormat(format));
  EXPECT_TRUE(IsStoredFormat(WeightFormat::kF16));
  EXPECT_FALSE(IsStoredFormat(WeightFormat::kInt8));  // made at load
  format.permuted_channels = true;
  EXPECT_FALSE(IsStoredFormat(format));
}

// An FP8 weight of 300 x 200: half-full tiles on both sides.
struct Fp8Weight {
  static constexpr int64_t kOutputs = 300, kChannels = 200;
  Fp8Weight() : codes(kOutputs * kChannels), scales(3 * 2) {
    Rng rng(7);
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(rng.Below(256));
      if ((code & 0x7f) == 0x7f) code = 0;
    }
    for (float& scale : scales) scale = rng.Uniform() + 0.5f;
    tensor = StoredWeight(TensorView(codes.data(), DType::kF8E4M3, {kOutputs, kChannels}),
                          TensorView(scales.data(), DType::kF32, {3, 2}));
  }
  float At(int64_t output, int64_t channel) const {
    return kE4M3Values[codes[static_cast<size_t>(output * kChannels + channel)]] *
           scales[static_cast<size_t>(output / 128 * 2 + channel / 128)];
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  WeightTensor tensor;
};

TEST(WeightTensor, SlicesBeginWithinATile) {
  const Fp8Weight w;
  for (const auto& [r0, r1] :
       {std::pair<int64_t, int64_t>{0, 300}, {100, 130}, {128, 256}, {299, 300}, {60, 290}}) {
    for (const auto& [c0, c1] : {std::pair<int64_t, int64_t>{0, 200}, {127, 129}, {130, 200}}) {
      // In two steps, so that an offset is added to an offset.
      const WeightTensor outputs =
          SliceOutputs(SliceOutputs(w.tensor, r0 / 2, 300), r0 - r0 / 2, r1 - r0 / 2);
      const WeightTensor slice = SliceChannels(outputs, c0, c1);
      const WeightTensor turned = Transposed(slice);
      ASSERT_EQ(slice.values.dim(0), r1 - r0);
      ASSERT_EQ(slice.format.scales.outputs.offset, r0 % 128);
      ASSERT_EQ(slice.scales.dim(0), (r1 - 1) / 128 - r0 / 128 + 1);
      ASSERT_EQ(turned.format.scales.channels, slice.format.scales.outputs);
      for (int64_t r = r0; r < r1; ++r) {
        for (int64_t c = c0; c < c1; ++c) {
          ASSERT_EQ(Dequantize(slice, r - r0, c - c0), w.At(r, c));
          ASSERT_EQ(Dequantize(turned, c - c0, r - r0), w.At(r, c));
        }
      }
    }
  }
}

TEST(WeightTensor, EmptySlice) {
  const Fp8Weight w;
  const WeightTensor none = SliceOutputs(w.tensor, 128, 128);
  EXPECT_EQ(none.values.dim(0), 0);
  EXPECT_EQ(none.scales.dim(0), 0);
  EXPECT_EQ(SliceOutputs(w.tensor, 300, 300).values.dim(0), 0);
}

TEST(WeightTensor, WithoutScales) {
  std::vector<BF16> values(6);
  for (size_t i = 0; i < 6; ++i) values[i] = ToBF16(static_cast<float>(i));
  const WeightTensor w = StoredWeight(TensorView(values.data(), DType::kBF16, {2, 3}));
  EXPECT_EQ(Dequantize(Transposed(SliceChannels(w, 1, 3)), 1, 1), 5.0f);
}

TEST(WeightTensorDeathTest, OutOfRange) {
  const Fp8Weight w;
  EXPECT_DEATH(Dequantize(w.tensor, 300, 0), "300");
  EXPECT_DEATH(SliceOutputs(w.tensor, 10, 301), "slice");
}

}  // namespace
}  // namespace fathom
