#include "ops/test_pages.h"

namespace fathom {
namespace {

EVERY_BACKEND(GatherContextTest);

TEST_P(GatherContextTest, GathersAnyRange) {
  const TestBackend& b = GetParam();
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
      // Between pieces of the other slot.
      const std::vector<ContextPiece> pieces = {{.slot = 0, .begin = 60, .count = 7},
                                                {.slot = 1, .begin = begin, .count = n, .at = 7},
                                                {.slot = 0, .begin = 3, .count = 1, .at = 7 + n}};
      TestTensor latent(b.act(), {n + 8, kLatent}), rope(b.act(), {n + 8, kRope});
      RunOp(b, &Ops::gather_context,
            {.pages = pages.pages(),
             .page_table = pages.table(),
             .pieces = pieces,
             .latent = latent,
             .rope = rope});
      for (const ContextPiece& piece : pieces) {
        for (int i = 0; i < piece.count; ++i) {
          const int at = piece.at + i, position = piece.begin + i;
          ExpectSameBits(PickVectors(latent.Floats(), kLatent, {at}),
                         pages.Latent(piece.slot, position));
          ExpectSameBits(PickVectors(rope.Floats(), kRope, {at}), pages.Rope(piece.slot, position));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fathom
