#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(EmbedTest);

constexpr int kVocab = 37, kHidden = 96;

TEST_P(EmbedTest, CopiesVectorsOfEveryType) {
  const std::vector<float> table = Normals(kVocab * kHidden, 1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TestTensor weights(dtype, {kVocab, kHidden}, table);
    for (const int live : {0, 1, 3, 5}) {
      TestTensor out(live == 3 ? DType::kF32 : GetParam().act(), {5, kHidden});
      const std::vector<int> ids = {36, 0, 7, 7, 1};
      RunOp(GetParam(), &Ops::embed,
            {.ids = Ints({5}, {ids.begin(), ids.begin() + live}),
             .table = weights,
             .live = Live(live),
             .out = out});
      std::vector<float> vectors = out.Floats();
      vectors.resize(live * kHidden);
      ExpectSameBits(vectors, PickVectors(table, kHidden, {ids.begin(), ids.begin() + live}));
      EXPECT_TRUE(out.PoisonedFrom(live));
    }
  }
}

}  // namespace
}  // namespace fathom
