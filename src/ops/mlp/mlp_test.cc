#include <cmath>

#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(MlpTest);

struct Case {
  Case(DType dtype, int in, int inter, int out)
      : gate(dtype, inter, in, 1), up(dtype, inter, in, 2), down(dtype, out, inter, 3) {}
  // FP8 with products of gate and up that every sum gets right.
  static Case Exact(int in, int inter, int out) {
    Case c(DType::kF8E4M3, in, inter, out);
    c.gate = TestMatrix(DType::kF8E4M3, inter, in, 1, Signs(inter * in, 1, 64));
    c.up = TestMatrix(DType::kF8E4M3, inter, in, 2, Signs(inter * in, 2, 64));
    return c;
  }
  int64_t in() const { return gate.weight.values.dim(1); }
  int64_t out() const { return down.weight.values.dim(0); }
  TestMatrix gate, up, down;
};

// Runs `tokens` of x with room for two more.
std::vector<float> RunTokens(const TestBackend& b, const Case& c, const std::vector<float>& x,
                             const std::vector<int>& tokens) {
  const auto gate_up = Pack(b, {{c.gate.weight, c.up.weight}}), down = Pack(b, {{c.down.weight}});
  const auto live = static_cast<int32_t>(tokens.size());
  TestTensor out(b.act(), {live + 2, c.out()});
  RunOp(b, &Ops::mlp,
        {.x = TestTensor(b.act(), {live + 2, c.in()}, PickVectors(x, c.in(), tokens)),
         .gate_up = gate_up.get(),
         .down = down.get(),
         .live = Live(live),
         .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> result = out.Floats();
  result.resize(static_cast<size_t>(live * c.out()));
  return result;
}

// What the contract leaves to tables with BF16 activations: whether the product of gate and up, and
// gate and up too, are rounded to them; and what their sums may be.
std::vector<std::vector<float>> RightResults(const TestBackend& b, const Case& c, bool quantized,
                                             const std::vector<float>& x) {
  std::vector<std::vector<float>> results;
  for (const Fp8Sums sums : SumsOf(b)) {
    const auto multiply = [&](const std::vector<float>& in, const Parts& parts) {
      return quantized ? Fp8Product(in, parts, false, sums) : ExactProduct(in, parts);
    };
    for (const auto& [gate_up_type, product_type] : {std::pair{DType::kF32, DType::kF32},
                                                     {DType::kF32, DType::kBF16},
                                                     {DType::kBF16, DType::kBF16}}) {
      std::vector<float>& result = results.emplace_back();
      for (int t = 0; t * c.in() < static_cast<int64_t>(x.size()); ++t) {
        const std::vector<float> gate_up =
            multiply(PickVectors(x, c.in(), {t}), {c.gate.weight, c.up.weight});
        const std::vector<float> y =
            multiply(SiluProduct(gate_up, gate_up_type, product_type), {c.down.weight});
        result.insert(result.end(), y.begin(), y.end());
      }
    }
  }
  return results;
}

void ExpectComposition(const TestBackend& b, const Case& c, bool quantized, double tolerance,
                       const std::vector<float>& x) {
  const auto run = [&](const TestBackend& each) {
    return RunTokens(each, c, x, Range(static_cast<int>(static_cast<int64_t>(x.size()) / c.in())));
  };
  if (b.act() == DType::kF32) return ExpectAsOracle(b, tolerance, run);
  ExpectCloseToOneOf(run(b), RightResults(b, c, quantized, x), tolerance);
}

constexpr std::tuple<int, int, int> kShapes[] = {
    {256, 128, 256}, {96, 96, 64}, {128, 224, 40}, {256, 384, 512}};

TEST_P(MlpTest, IsTheComposition) {
  const TestBackend& b = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [in, inter, out] : kShapes) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << " " << in << " " << inter << " " << out);
      const bool quantized = b.activations == Fp8Activations::kQuantized && dtype == DType::kF8E4M3;
      // A last bit of gate or up tips a code of their product now and then, by a tenth or so: where
      // it is not right to the bit.
      const double of_fp8 = b.act() == DType::kF32 ? 2e-3 : Rounding(b) / 4;
      ExpectComposition(b, Case(dtype, in, inter, out), quantized,
                        1e-5 + (quantized ? of_fp8 : Rounding(b) + Summing(b)), Normals(3 * in, 4));
    }
  }
}

TEST_P(MlpTest, IsTheCompositionWhereNoCodeTips) {
  const TestBackend& b = GetParam();
  for (const auto& [in, inter, out] : kShapes) {
    SCOPED_TRACE(testing::Message() << in << " " << inter << " " << out);
    ExpectComposition(b, Case::Exact(in, inter, out), b.activations == Fp8Activations::kQuantized,
                      1e-5 + Rounding(b) / 4, Signs(3 * in, 4));
  }
}

// A norm's copy changes no bit.
void ExpectOfACopy(const TestBackend& b, const Case& c, std::initializer_list<int> token_counts) {
  const auto gate_up = Pack(b, {{c.gate.weight, c.up.weight}}), down = Pack(b, {{c.down.weight}});
  const int64_t in = c.in();
  for (const int tokens : token_counts) {
    SCOPED_TRACE(tokens);
    const TestTensor x(b.act(), {tokens, in}, Normals(tokens * in, 7)), live = Live(tokens);
    const TestTensor normed(b.act(), {tokens, in}), out(b.act(), {tokens, c.out()});
    const TestTensor codes(DType::kF8E4M3, {tokens, in}), scales(DType::kF32, {in / 128, 160});
    const QuantizedCopy copy = {codes, scales};
    RunOp(b, &Ops::rms_norm,
          {.x = x,
           .weight = TestTensor(DType::kF32, {in}, Normals(in, 8)),
           .live = live,
           .out = normed,
           .quantized = copy});
    RunOp(b, &Ops::mlp,
          {.x = normed,
           .x_quantized = gate_up->quantize_activations ? copy : QuantizedCopy{},
           .gate_up = gate_up.get(),
           .down = down.get(),
           .live = live,
           .out = out});
    ExpectSameBits(out.Floats(), RunTokens(b, c, normed.Floats(), Range(tokens)));
  }
}

TEST_P(MlpTest, OfANormsQuantizedCopy) {
  ExpectOfACopy(GetParam(), Case(DType::kF8E4M3, 256, 384, 128), {3, 9, 67, 130});
}

// Weights large enough for kernels of their own, of few tokens.
TEST_P(MlpTest, OfACopyWithLargeWeights) {
  if (!GetParam().ops->quantized_copies) GTEST_SKIP() << "has no such kernels";
  ExpectOfACopy(GetParam(), Case(DType::kF8E4M3, 512, 4096, 8192), {1, 2, 5, 8});
}

TEST_P(MlpTest, ATokenDoesNotDependOnHundreds) {
  const Case c(DType::kBF16, 96, 136, 72);
  const std::vector<float> x = Normals(512 * 96, 6);
  const std::vector<float> all = RunTokens(GetParam(), c, x, Range(512));
  for (const int count : {1, 8, 63}) {
    SCOPED_TRACE(count);
    ExpectSameBits(RunTokens(GetParam(), c, x, Range(count)), PickVectors(all, 72, Range(count)));
  }
}

TEST_P(MlpTest, ATokenDoesNotDependOnOthers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Case c(dtype, 128, 256, 128);
    const std::vector<float> x = Normals(20 * 128, 5);
    ExpectTokenInvariance(20, 128, [&](const std::vector<int>& tokens) {
      return RunTokens(GetParam(), c, x, tokens);
    });
    EXPECT_TRUE(RunTokens(GetParam(), c, x, {}).empty());
  }
}

}  // namespace
}  // namespace fathom
