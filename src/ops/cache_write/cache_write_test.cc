#include <cmath>

#include "ops/test_pages.h"

namespace fathom {
namespace {

EVERY_BACKEND(CacheWriteTest);

TEST_P(CacheWriteTest, WritesEachTokenToItsPlaceAndNothingElse) {
  const Backend& b = GetParam();
  const std::vector<int> slots = {2, 0, 0, 0, 0, 1, 1};
  const std::vector<int> positions = {0, 62, 63, 64, 65, 191, 128};
  constexpr int kLatent = 48, kRope = 10, kTokens = 7;
  // Latent and key lie in one row, as kv_a_proj_with_mqa leaves them.
  const std::vector<float> x = Normals(kTokens * (kLatent + kRope), 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
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
            latent.assign(row, row + kLatent);
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
  const Backend& b = GetParam();
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

}  // namespace
}  // namespace fathom
