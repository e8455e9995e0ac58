#include "ops/test_pages.h"

namespace fathom {
namespace {

EVERY_BACKEND(GatherContextTest);

TEST_P(GatherContextTest, GathersAnyRange) {
  const Backend& b = GetParam();
  constexpr int kLatent = 48, kRope = 10;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    TestPages pages(dtype, 2, 4, kLatent, kRope);
    pages.Fill(0, 256, 1);
    pages.Fill(1, 256, 2);
    for (const auto& [begin, n] : {std::pair{0, 0},
                                   {0, 1},
                                   {0, 63},
                                   {0, 64},
                                   {0, 65},
                                   {63, 2},
                                   {64, 64},
                                   {100, 156},
                                   {255, 1}}) {
      TestTensor latent(b.act(), {n, kLatent}), rope(b.act(), {n, kRope});
      RunOp(b, &Ops::gather_context,
            {.pages = pages.pages(),
             .page_table = pages.table().view().At(1),
             .begin = begin,
             .latent = latent,
             .rope = rope});
      for (int i = 0; i < n; ++i) {
        ExpectSameBits(PickRows(latent.Floats(), kLatent, {i}), pages.Latent(1, begin + i));
        ExpectSameBits(PickRows(rope.Floats(), kRope, {i}), pages.Rope(1, begin + i));
      }
    }
  }
}

}  // namespace
}  // namespace fathom
