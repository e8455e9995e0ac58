#include <cmath>

#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(MlpTest);

struct Case {
  Case(DType dtype, int in, int inter, int out)
      : gate(dtype, inter, in, 1), up(dtype, inter, in, 2), down(dtype, out, inter, 3) {}
  int64_t in() const { return gate.weight.values.dim(1); }
  int64_t out() const { return down.weight.values.dim(0); }
  TestMatrix gate, up, down;
};

// Runs `tokens` of x with room for two more.
std::vector<float> RunTokens(const Backend& b, const Case& c, const std::vector<float>& x,
                             const std::vector<int>& tokens) {
  const auto gate_up = Pack(b, {{c.gate.weight, c.up.weight}}), down = Pack(b, {{c.down.weight}});
  const auto live = static_cast<int32_t>(tokens.size());
  TestTensor out(b.act(), {live + 2, c.out()});
  RunOp(b, &Ops::mlp,
        {.x = TestTensor(b.act(), {live + 2, c.in()}, PickRows(x, c.in(), tokens)),
         .gate_up = gate_up.get(),
         .down = down.get(),
         .live = Live(live),
         .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> rows = out.Floats();
  rows.resize(static_cast<size_t>(live * c.out()));
  return rows;
}

TEST_P(MlpTest, IsTheComposition) {
  const Backend& b = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [in, inter, out] :
         {std::tuple{256, 128, 256}, {96, 96, 64}, {128, 224, 40}, {256, 384, 512}}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << " " << in << " " << inter << " " << out);
      const Case c(dtype, in, inter, out);
      const std::vector<float> x = Normals(3 * in, 4);
      const bool exact = b.activations == Fp8Activations::kExact || dtype != DType::kF8E4M3;
      // Of FP8 a last bit of the product may tip a code, and one of BF16 tips many.
      const double tipped = exact ? 0 : b.act() == DType::kBF16 ? 3e-2 : 2e-3;
      const double tolerance = 1e-5 + tipped + 2 * Rounding(b) + Summing(b, dtype);
      ExpectAsOracle(b, tolerance,
                     [&](const Backend& each) { return RunTokens(each, c, x, Range(3)); });
    }
  }
}

TEST_P(MlpTest, ATokenDoesNotDependOnHundreds) {
  const Case c(DType::kBF16, 96, 136, 72);
  const std::vector<float> x = Normals(512 * 96, 6);
  const std::vector<float> all = RunTokens(GetParam(), c, x, Range(512));
  for (const int rows : {1, 8, 63}) {
    SCOPED_TRACE(rows);
    ExpectSameBits(RunTokens(GetParam(), c, x, Range(rows)), PickRows(all, 72, Range(rows)));
  }
}

TEST_P(MlpTest, ATokenDoesNotDependOnOthers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Case c(dtype, 128, 256, 128);
    const std::vector<float> x = Normals(20 * 128, 5);
    ExpectRowInvariance(20, 128, [&](const std::vector<int>& tokens) {
      return RunTokens(GetParam(), c, x, tokens);
    });
    EXPECT_TRUE(RunTokens(GetParam(), c, x, {}).empty());
  }
}

}  // namespace
}  // namespace fathom
