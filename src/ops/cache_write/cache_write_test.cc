#include <cmath>

#include "ops/test_pages.h"

namespace fathom {
namespace {

EVERY_BACKEND(CacheWriteTest);

TEST_P(CacheWriteTest, WritesEachTokenToItsPlaceAndNothingElse) {
  const TestBackend& b = GetParam();
  const std::vector<int> slots = {2, 0, 0, 0, 0, 1, 1};
  const std::vector<int> positions = {0, 62, 63, 64, 65, 191, 128};
  constexpr int kLatent = 48, kRope = 10, kTokens = 7;
  // Latent and key lie in one row, as kv_a_proj_with_mqa leaves them.
  const std::vector<float> x = Normals(kTokens * (kLatent + kRope), 1);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const int live : {0, 1, kTokens}) {
      const TestPages pages(dtype, 3, 3, kLatent, kRope);
      const TestTensor rows(b.act(), {kTokens, kLatent + kRope}, x);
      const TestTokens tokens(pages, {slots.begin(), slots.begin() + live},
                              {positions.begin(), positions.begin() + live}, kTokens);
      RunOp(b, &Ops::cache_write,
            {.latent = rows.view().Slice(1, 0, kLatent),
             .rope = rows.view().Slice(1, kLatent, kLatent + kRope),
             .tokens = tokens.map(),
             .pages = pages.pages()});
      for (int slot = 0; slot < 3; ++slot) {
        for (int p = 0; p < 3 * kPageTokens; ++p) {
          std::vector<float> latent(kLatent, NAN), rope(kRope, NAN);
          for (int t = 0; t < live; ++t) {
            if (slots[t] != slot || positions[t] != p) continue;
            const float* row = &x[t * (kLatent + kRope)];
            latent = RoundLatent({row, row + kLatent}, dtype);
            rope.assign(row + kLatent, row + kLatent + kRope);
          }
          ExpectSameBits(pages.Latent(slot, p), latent);
          ExpectSameBits(pages.Rope(slot, p), rope);
        }
      }
    }
  }
}

TEST_P(CacheWriteTest, RoundsToNearestEven) {
  const TestBackend& b = GetParam();
  if (b.act() != DType::kF32) GTEST_SKIP() << "activations are rounded already";
  const TestPages pages(DType::kBF16, 1, 1, 3, 2);
  const TestTokens tokens(pages, {0}, {0}, 1);
  RunOp(b, &Ops::cache_write,
        {.latent = TestTensor(DType::kF32, {1, 3}, {1 + 0x1p-8f, 1 + 0x3p-8f, NAN}),
         .rope = TestTensor(DType::kF32, {1, 2}, {-1 - 0x1.1p-8f, INFINITY}),
         .tokens = tokens.map(),
         .pages = pages.pages()});
  ExpectSameBits(pages.Latent(0, 0), {1, 1 + 0x4p-8f, NAN});
  ExpectSameBits(pages.Rope(0, 0), {-1 - 0x2p-8f, INFINITY});
}

// A NaN, an infinity, zeros, the largest and the smallest: a token's scale is its own.
TEST_P(CacheWriteTest, ScalesEachTokenByItsLargestChannel) {
  const TestBackend& b = GetParam();
  const std::vector<std::vector<float>> latents = {
      {0, 0, 0},   {448, 1, -0.0625f}, {449, 1, -0.0625f}, {0x1p-60f, 0, 0}, {0x1p100f, 0x1p91f, 3},
      {1, NAN, 2}, {1, INFINITY, 2},   {-3, 2.5f, 1e-3f}};
  const auto n = static_cast<int>(latents.size());
  const TestPages pages(DType::kF8E4M3, 1, 1, 3, 2);
  const TestTokens tokens(pages, std::vector<int>(n, 0), Range(n), n);
  std::vector<float> x;
  for (const auto& latent : latents) x.insert(x.end(), latent.begin(), latent.end());
  RunOp(b, &Ops::cache_write,
        {.latent = TestTensor(b.act(), {n, 3}, x),
         .rope = TestTensor(b.act(), {n, 2}, std::vector<float>(2 * n, 1.5f)),
         .tokens = tokens.map(),
         .pages = pages.pages()});
  for (int t = 0; t < n; ++t) {
    SCOPED_TRACE(t);
    const std::vector<float> row = TestTensor(b.act(), {3}, latents[t]).Floats();
    ExpectSameBits(pages.Latent(0, t), RoundLatent(row, DType::kF8E4M3));
    ExpectSameBits(pages.Rope(0, t), {1.5f, 1.5f});
  }
  // A power of two, so that codes x scale are numbers of BF16.
  EXPECT_EQ(pages.Latent(0, 2), (std::vector<float>{448, 1, -0.0625f}));
  for (const float value : pages.Latent(0, 5)) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace fathom
