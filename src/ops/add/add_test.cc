#include <cmath>

#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(AddTest);

TEST_P(AddTest, AddsLiveRows) {
  const Backend& b = GetParam();
  constexpr int kWidth = 131;
  std::vector<float> x = Normals(4 * kWidth, 1);
  const std::vector<float> y = Normals(4 * kWidth, 2);
  x[3] = NAN;
  x[4] = -INFINITY;
  for (const int live : {0, 1, 3, 4}) {
    const TestTensor from(b.act(), {4, kWidth}, x), sum(b.act(), {4, kWidth}, y);
    RunOp(b, &Ops::add, {.x = from, .live = Live(live), .sum = sum});
    std::vector<float> expected(4 * kWidth);
    for (int i = 0; i < 4 * kWidth; ++i) expected[i] = i < live * kWidth ? x[i] + y[i] : y[i];
    ExpectSameBits(sum.Floats(), TestTensor(b.act(), {4 * kWidth}, expected).Floats());
  }
}

}  // namespace
}  // namespace fathom
