#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace fathom {
namespace {

TEST(DType, BF16RoundsToNearestEven) {
  EXPECT_EQ(ToFloat(ToBF16(1.0f)), 1.0f);
  EXPECT_EQ(ToFloat(ToBF16(1.0f + 0x1p-8f)), 1.0f);                // a tie, to even
  EXPECT_EQ(ToFloat(ToBF16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);  // a tie, to even
  EXPECT_EQ(ToFloat(ToBF16(1.0f + 0x1.1p-8f)), 1.0f + 0x1p-7f);
  EXPECT_TRUE(std::isnan(ToFloat(ToBF16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(ToFloat(ToBF16(std::numeric_limits<float>::max()))));
}

TEST(DType, F16Decodes) {
  EXPECT_EQ(ToFloat(F16{0x3c00}), 1.0f);
  EXPECT_EQ(ToFloat(F16{0xc000}), -2.0f);
  EXPECT_EQ(ToFloat(F16{0x0001}), 0x1p-24f);
  EXPECT_EQ(ToFloat(F16{0x7bff}), 65504.0f);
  EXPECT_TRUE(std::isinf(ToFloat(F16{0x7c00})));
  EXPECT_TRUE(std::isnan(ToFloat(F16{0x7c01})));
  EXPECT_TRUE(std::signbit(ToFloat(F16{0x8000})));
}

TEST(TensorView, SlicesAndTransposes) {
  float data[12];
  for (int i = 0; i < 12; ++i) data[i] = static_cast<float>(i);
  const TensorView view(data, DType::kF32, {3, 4});
  EXPECT_EQ(LoadFloat(view.Slice(0, 1, 3).Slice(1, 2, 4), 1, 1), 11.0f);
  EXPECT_EQ(LoadFloat(view.Transposed(), 3, 1), 7.0f);
  EXPECT_FALSE(view.Transposed().contiguous());
  EXPECT_EQ(view.At(2).As<float>()[0], 8.0f);
  EXPECT_EQ(view.Slice(0, 3, 3).elements(), 0);
  EXPECT_EQ(view.Reshaped({2, 3, 2}).ToString(), "F32 [2, 3, 2]");
}

TEST(TensorViewDeathTest, OutOfRangeIsABug) {
  float data[4] = {};
  EXPECT_DEATH(TensorView(data, DType::kF32, {2, 2}).Slice(0, 1, 3), "slice \\[1, 3\\)");
  EXPECT_DEATH((void)TensorView(data, DType::kF32, {4}).As<int32_t>(), "tensor is F32");
}

TEST(BufferDeathTest, MemoryThatIsRefusedIsNoBug) {
  EXPECT_EXIT(Buffer(size_t{1} << 60), testing::ExitedWithCode(1),
              "refused 1152921504606846976 bytes.*--max-model-len");
}

TEST(Arena, MeasuresWhatItLaterGives) {
  Arena measure = Arena::Measuring();
  measure.Allocate(DType::kBF16, {3, 5});
  measure.Allocate(DType::kF32, {7});
  measure.Take<double>(3);
  EXPECT_EQ(measure.used(), 3 * 256u);
  Buffer buffer(measure.used());
  Arena arena(buffer.data(), buffer.size());
  arena.Allocate(DType::kBF16, {3, 5});
  EXPECT_EQ(arena.Allocate(DType::kF32, {7}).As<float>()[6], 0.0f);
  EXPECT_EQ(arena.Take<double>(3)[2], 0.0);
  EXPECT_DEATH(arena.Take<char>(1), "768 used, 1 more asked for");
}

}  // namespace
}  // namespace fathom
