#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(GatherRowsTest);

TEST_P(GatherRowsTest, CopiesLiveRows) {
  const TestBackend& b = GetParam();
  const std::vector<float> x = Normals(6 * 33, 1);
  const std::vector<int> index = {5, 0, 0, 3};
  for (const int live : {0, 1, 3, 4}) {
    const std::vector<int> picked(index.begin(), index.begin() + live);
    TestTensor out(b.act(), {4, 33});
    RunOp(b, &Ops::gather_rows,
          {.x = TestTensor(b.act(), {6, 33}, x),
           .index = Ints({4}, {picked.begin(), picked.end()}),
           .live = Live(live),
           .out = out});
    std::vector<float> rows = out.Floats();
    rows.resize(live * 33);
    ExpectSameBits(rows, PickRows(x, 33, picked));
    EXPECT_TRUE(out.PoisonedFrom(live));
  }
}

}  // namespace
}  // namespace fathom
