#include "ops/kv_format.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(KvFormat, PlanesFollowEachOtherOnMultiplesOf64Bytes) {
  const KvFormat bf16 = LatentKvFormat(DType::kBF16, 512, 64);
  EXPECT_EQ(bf16.Offset(KvPart::kLatent), 0);
  EXPECT_EQ(bf16.Offset(KvPart::kRope), 64 * 512 * 2);
  EXPECT_EQ(bf16.page_bytes(), 64 * 576 * 2);
  EXPECT_EQ(bf16.Find(KvPart::kLatentScale), nullptr);

  const KvFormat fp8 = LatentKvFormat(DType::kF8E4M3, 512, 64);
  EXPECT_EQ(fp8.At(KvPart::kRope).dtype, DType::kBF16);
  EXPECT_EQ(fp8.Offset(KvPart::kRope), 64 * 512);
  EXPECT_EQ(fp8.Offset(KvPart::kLatentScale), 64 * (512 + 2 * 64));
  EXPECT_EQ(fp8.page_bytes(), 64 * (512 + 2 * 64 + 4));
}

TEST(KvFormat, ViewsOfPages) {
  const KvFormat format = LatentKvFormat(DType::kF8E4M3, 36, 6);
  alignas(64) std::byte memory[10240];
  ASSERT_LE(3 * format.page_bytes(), 10240);
  const KvPages pages = PagesAt(format, memory, 3);
  EXPECT_EQ(pages.latent.ToString(), "F8_E4M3 [3, 64, 36]");
  EXPECT_EQ(pages.rope.ToString(), "BF16 [3, 64, 6]");
  EXPECT_EQ(pages.scales.ToString(), "F32 [3, 64]");
  EXPECT_EQ(static_cast<std::byte*>(pages.rope.At(2).data()),
            memory + 2 * format.page_bytes() + format.Offset(KvPart::kRope));
  EXPECT_EQ(reinterpret_cast<std::byte*>(pages.scales.As<float>(2)),
            memory + 2 * format.page_bytes() + format.Offset(KvPart::kLatentScale));
  EXPECT_TRUE(PagesAt(LatentKvFormat(DType::kF32, 36, 6), memory, 0).scales.absent());
}

// A plane to come stands after the others and moves none of them.
TEST(KvFormat, OneMorePlane) {
  const KvFormat format = LatentKvFormat(DType::kBF16, 512, 64);
  KvFormat longer = format;
  longer.planes.push_back({KvPart::kLatentScale, DType::kF32, 128});
  EXPECT_EQ(longer.Offset(KvPart::kRope), format.Offset(KvPart::kRope));
  EXPECT_EQ(longer.page_bytes(), format.page_bytes() + 64 * 128 * 4);
}

TEST(KvFormatDeathTest, NoSuchPlane) {
  EXPECT_DEATH(LatentKvFormat(DType::kBF16, 512, 64).At(KvPart::kLatentScale), "without plane 2");
}

}  // namespace
}  // namespace fathom
