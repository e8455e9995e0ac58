#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(GatherTokensTest);

TEST_P(GatherTokensTest, CopiesLiveTokens) {
  const TestBackend& b = GetParam();
  const std::vector<float> x = Normals(6 * 33, 1);
  const std::vector<int> index = {5, 0, 0, 3};
  for (const int live : {0, 1, 3, 4}) {
    const std::vector<int> picked(index.begin(), index.begin() + live);
    TestTensor out(b.act(), {4, 33});
    RunOp(b, &Ops::gather_tokens,
          {.x = TestTensor(b.act(), {6, 33}, x),
           .index = Ints({4}, {picked.begin(), picked.end()}),
           .live = Live(live),
           .out = out});
    std::vector<float> copies = out.Floats();
    copies.resize(live * 33);
    ExpectSameBits(copies, PickVectors(x, 33, picked));
    EXPECT_TRUE(out.PoisonedFrom(live));
  }
}

}  // namespace
}  // namespace fathom
