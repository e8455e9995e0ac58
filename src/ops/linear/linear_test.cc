#include <algorithm>
#include <cmath>

#include "ops/test_weights.h"
#include "products/hopper/fp8_chains.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(LinearTest);

constexpr double kTolerance = 5e-6;  // against other orders of summation

struct Case {
  Parts parts;
  std::vector<float> x;  // [tokens, in]
  PackOptions options;
  DType out = DType::kF32;

  int64_t in() const { return parts[0].values.dim(1); }
  std::vector<float> Token(int t) const { return PickVectors(x, in(), {t}); }
  int tokens() const { return static_cast<int>(x.size() / in()); }
};

// Runs `tokens` of the case with room for two more.
std::vector<float> RunTokens(const TestBackend& b, const PackedWeight& w, const Case& c,
                             const std::vector<int>& tokens, bool batch_invariant = true) {
  const int live = static_cast<int>(tokens.size());
  const TestTensor x(b.act(), {live + 2, c.in()}, PickVectors(c.x, c.in(), tokens));
  TestTensor out(c.out, {live + 2, w.out});
  RunOp(b, &Ops::linear,
        {.x = x, .weight = &w, .live = Live(live), .out = out, .batch_invariant = batch_invariant});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> result = out.Floats();
  result.resize(live * w.out);
  return result;
}

std::vector<float> RunCase(const TestBackend& b, const Case& c) {
  const auto w = Pack(b, {c.parts}, c.options);
  EXPECT_EQ(w->in, c.in());
  EXPECT_EQ(w->count, 1);
  EXPECT_GT(w->bytes, 0u);
  return RunTokens(b, *w, c, Range(c.tokens()));
}

std::vector<float> Exact(const Case& c) {
  std::vector<float> out;
  for (int t = 0; t < c.tokens(); ++t) {
    const std::vector<float> y = ExactProduct(c.Token(t), c.parts);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

std::vector<float> Fp8(const Case& c, Fp8Sums sums = Fp8Sums::kReference) {
  std::vector<float> out;
  const int64_t outputs = c.parts[0].values.dim(0);
  const int chains = c.parts.size() == 1 ? Fp8Chains(outputs, c.in()) : 1;
  for (int t = 0; t < c.tokens(); ++t) {
    const std::vector<float> y =
        Fp8Product(c.Token(t), c.parts, c.options.scale_ue8m0, sums, chains);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

// Expects what the mode of the table makes of FP8 weights.
void ExpectFp8(const TestBackend& b, const Case& c, double tolerance = kTolerance) {
  const std::vector<float> out = RunCase(b, c);
  if (b.activations == Fp8Activations::kExact) return ExpectClose(out, Exact(c), tolerance);
  std::vector<std::vector<float>> right;
  for (const Fp8Sums sums : SumsOf(b)) right.push_back(Fp8(c, sums));
  ExpectCloseToOneOf(out, right, tolerance);
}

// Tokens of very different size, as activations have.
std::vector<float> ActivationLike(int tokens, int64_t in, uint64_t seed) {
  std::vector<float> x = Normals(tokens * in, seed);
  for (int64_t i = 0; i < tokens * in; ++i) x[i] *= std::exp2(static_cast<float>(i % 11) - 5);
  return x;
}

TEST_P(LinearTest, WeightsOfFullPrecision) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [out, in] :
         {std::pair{576, 256}, {33, 96}, {1, 1}, {128, 1408}, {7, 129}, {300, 64}}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << " " << out << " x " << in);
      const TestMatrix m(dtype, out, in, 1);
      const Case c = {.parts = {m.weight}, .x = ActivationLike(3, in, 2), .options = {}};
      const double tolerance = kTolerance + Summing(GetParam());
      ExpectClose(RunCase(GetParam(), c), Exact(c), tolerance);
      ExpectAsOracle(GetParam(), tolerance, [&](const TestBackend& b) { return RunCase(b, c); });
    }
  }
}

TEST_P(LinearTest, Fp8WithHalfFullTiles) {
  for (const auto& [out, in] : {std::pair{576, 256},
                                {256, 224},
                                {96, 128},
                                {128, 96},
                                {40, 1408},
                                {5, 10944},
                                {1, 1},
                                {384, 2048},
                                {72, 4240},
                                {136, 7168}}) {
    for (const bool ue8m0 : {false, true}) {
      SCOPED_TRACE(testing::Message() << out << " x " << in << (ue8m0 ? " ue8m0" : ""));
      const TestMatrix m(DType::kF8E4M3, out, in, 3);
      const Case c = {
          .parts = {m.weight}, .x = ActivationLike(3, in, 4), .options = {.scale_ue8m0 = ue8m0}};
      ExpectFp8(GetParam(), c);
      if (GetParam().act() == DType::kF32) {
        ExpectAsOracle(GetParam(), kTolerance, [&](const TestBackend& b) { return RunCase(b, c); });
      }
      ExpectSameBits(RunCase(Oracle(), c), Fp8(c));
    }
  }
}

TEST_P(LinearTest, GateAndUpPartsCutInsideTiles) {
  // Gate and up of 1408 outputs over two ranks: the second rank's begin in the middle of a tile.
  const TestMatrix gate(DType::kF8E4M3, 1408, 256, 5), up(DType::kF8E4M3, 1408, 256, 6);
  for (const int64_t begin : {0, 704}) {
    const Case c = {.parts = {SliceOutputs(gate.weight, begin, begin + 704),
                              SliceOutputs(up.weight, begin, begin + 704)},
                    .x = ActivationLike(2, 256, 7),
                    .options = {}};
    ExpectFp8(GetParam(), c);
    ExpectSameBits(RunCase(Oracle(), c), Fp8(c));
  }
}

TEST_P(LinearTest, ColumnsCutInsideTiles) {
  const TestMatrix down(DType::kF8E4M3, 192, 1408, 8);
  for (const auto& [begin, end] : {std::pair{704, 1408}, {0, 704}, {100, 120}, {100, 129}}) {
    SCOPED_TRACE(testing::Message() << begin << " to " << end);
    const Case c = {.parts = {SliceChannels(down.weight, begin, end)},
                    .x = ActivationLike(2, end - begin, 9),
                    .options = {}};
    ExpectFp8(GetParam(), c);
    ExpectSameBits(RunCase(Oracle(), c), Fp8(c));
  }
}

TEST_P(LinearTest, TransposedSources) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const TestMatrix m(dtype, 320, 300, 10);
    const Case c = {.parts = {Transposed(SliceOutputs(m.weight, 70, 200))},
                    .x = ActivationLike(2, 130, 11),
                    .options = {.exact_activations = true}};
    // Tables of BF16 round FP8 weights here.
    const double rounding = dtype == DType::kF8E4M3 ? Rounding(GetParam()) : 0;
    ExpectClose(RunCase(GetParam(), c), Exact(c), kTolerance + Summing(GetParam()) + rounding);
  }
}

TEST_P(LinearTest, ActivationsOut) {
  const TestMatrix m(DType::kF8E4M3, 200, 256, 12);
  const Case c = {
      .parts = {m.weight}, .x = ActivationLike(4, 256, 13), .options = {}, .out = GetParam().act()};
  ExpectFp8(GetParam(), c, kTolerance + Rounding(GetParam()));
}

TEST_P(LinearTest, ATokenDoesNotDependOnOthers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const TestMatrix m(dtype, 144, 1424, 14);
    const Case c = {.parts = {m.weight}, .x = ActivationLike(67, 1424, 15), .options = {}};
    const auto w = Pack(GetParam(), {c.parts});
    ExpectTokenInvariance(67, 144, [&](const std::vector<int>& tokens) {
      return RunTokens(GetParam(), *w, c, tokens);
    });
    EXPECT_TRUE(RunTokens(GetParam(), *w, c, {}).empty());
  }
}

// Long sums of many tokens may then be added up otherwise.
TEST_P(LinearTest, WithoutBatchInvarianceItIsAsClose) {
  const TestMatrix m(DType::kF8E4M3, 136, 4096, 26);
  const Case c = {.parts = {m.weight}, .x = ActivationLike(2, 4096, 27), .options = {}};
  const auto w = Pack(GetParam(), {c.parts});
  std::vector<int> tokens(600, 0);
  tokens.back() = 1;
  const std::vector<float> all = RunTokens(GetParam(), *w, c, tokens, false);
  std::vector<float> ends(all.begin(), all.begin() + 136);
  ends.insert(ends.end(), all.end() - 136, all.end());
  std::vector<std::vector<float>> right = {Exact(c)};
  if (GetParam().activations != Fp8Activations::kExact) {
    right.clear();
    for (const Fp8Sums sums : SumsOf(GetParam())) right.push_back(Fp8(c, sums));
  }
  ExpectCloseToOneOf(ends, right, kTolerance);
}

TEST_P(LinearTest, ATokenDoesNotDependOnThousands) {
  const TestMatrix m(DType::kBF16, 72, 328, 24);
  const Case c = {.parts = {m.weight}, .x = ActivationLike(4096, 328, 25), .options = {}};
  const auto w = Pack(GetParam(), {c.parts});
  const std::vector<float> all = RunTokens(GetParam(), *w, c, Range(4096));
  for (const int count : {1, 8, 63, 512}) {
    SCOPED_TRACE(count);
    ExpectSameBits(RunTokens(GetParam(), *w, c, Range(count)), PickVectors(all, 72, Range(count)));
  }
}

// The first part ends with a scale tile, or within one; each has the bits that it has alone.
TEST_P(LinearTest, PartsOfDifferentSizes) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16}) {
    for (const int outputs : {256, 136}) {
      const TestMatrix m(dtype, outputs, 2048, 24), n(dtype, 144, 2048, 25);
      const auto both = Pack(GetParam(), {{m.weight, n.weight}});
      for (const int tokens : {1, 3, 8, 67}) {
        SCOPED_TRACE(testing::Message() << outputs << " outputs, " << tokens << " tokens");
        const Case c = {.parts = {m.weight}, .x = ActivationLike(tokens, 2048, 26), .options = {}};
        const std::vector<float> out = RunTokens(GetParam(), *both, c, Range(tokens));
        std::vector<float> first, second;
        for (int t = 0; t < tokens; ++t) {
          const auto y = out.begin() + t * (outputs + 144);
          first.insert(first.end(), y, y + outputs);
          second.insert(second.end(), y + outputs, y + outputs + 144);
        }
        const auto alone = [&](const TestMatrix& matrix) {
          return RunTokens(GetParam(), *Pack(GetParam(), {{matrix.weight}}), c, Range(tokens));
        };
        if (dtype == DType::kF8E4M3 && outputs % 128 != 0) {
          ExpectClose(first, alone(m), 1e-3);  // another kernel
          ExpectClose(second, alone(n), 1e-3);
        } else {
          ExpectSameBits(first, alone(m));
          ExpectSameBits(second, alone(n));
        }
      }
    }
  }
}

// A norm's copy changes no bit, whether the table makes it or not.
void ExpectOfACopy(const TestBackend& b, const Case& c) {
  const int64_t in = c.in();
  const auto w = Pack(b, {c.parts}, c.options);
  const TestTensor x(b.act(), {c.tokens(), in}, c.x), normed(b.act(), {c.tokens(), in});
  const TestTensor weight(DType::kF32, {in}, Normals(in, 30)), live = Live(c.tokens());
  const TestTensor codes(DType::kF8E4M3, {c.tokens(), in}), scales(DType::kF32, {in / 128, 160});
  const TestTensor y(c.out, {c.tokens(), w->out});
  const QuantizedCopy copy = {codes, scales, c.options.scale_ue8m0};
  RunOp(b, &Ops::rms_norm,
        {.x = x, .weight = weight, .live = live, .out = normed, .quantized = copy});
  RunOp(b, &Ops::linear,
        {.x = normed,
         .x_quantized = w->quantize_activations ? copy : QuantizedCopy{},
         .weight = w.get(),
         .live = live,
         .out = y});
  Case alone = c;
  alone.x = normed.Floats();
  ExpectSameBits(y.Floats(), RunTokens(b, *w, alone, Range(c.tokens())));
}

TEST_P(LinearTest, OfANormsQuantizedCopy) {
  const TestMatrix m(DType::kF8E4M3, 256, 2048, 27), n(DType::kF8E4M3, 256, 2048, 28);
  for (const Parts& parts : {Parts{m.weight}, Parts{m.weight, n.weight}}) {
    for (const bool ue8m0 : {false, true}) {
      for (const int tokens : {1, 8, 9, 67, 130}) {
        for (const DType out : {DType::kF32, GetParam().act()}) {
          SCOPED_TRACE(testing::Message() << parts.size() << " parts, " << tokens << " tokens, "
                                          << (ue8m0 ? "ue8m0, " : "") << Name(out));
          ExpectOfACopy(GetParam(), {.parts = parts,
                                     .x = ActivationLike(tokens, 2048, 29),
                                     .options = {.scale_ue8m0 = ue8m0},
                                     .out = out});
        }
      }
    }
  }
}

// Weights so large that few tokens are quantised first.
TEST_P(LinearTest, FewTokensOfLargeWeights) {
  if (!GetParam().ops->quantized_copies) GTEST_SKIP() << "has no such kernels";
  const TestMatrix m(DType::kF8E4M3, 8192, 4096, 31);
  const Case c = {.parts = {m.weight},
                  .x = ActivationLike(16, 4096, 32),
                  .options = {},
                  .out = GetParam().act()};
  const auto w = Pack(GetParam(), {c.parts});
  const std::vector<float> all = RunTokens(GetParam(), *w, c, Range(16));
  for (const int tokens : {1, 2, 4, 6}) {
    SCOPED_TRACE(tokens);
    ExpectSameBits(RunTokens(GetParam(), *w, c, Range(tokens)),
                   PickVectors(all, 8192, Range(tokens)));
  }
}

TEST_P(LinearTest, StridedTokens) {
  const TestBackend& b = GetParam();
  const TestMatrix m(DType::kF8E4M3, 70, 512, 16);
  const Case c = {.parts = {m.weight}, .x = Normals(3 * 512, 17), .options = {}};
  const auto w = Pack(b, {c.parts});
  std::vector<float> wide(3 * 576, NAN);
  for (int t = 0; t < 3; ++t) std::copy_n(&c.x[t * 512], 512, &wide[t * 576]);
  const TestTensor x(b.act(), {3, 576}, wide);
  TestTensor out(DType::kF32, {3, 70});
  RunOp(b, &Ops::linear,
        {.x = x.view().Slice(1, 0, 512), .weight = w.get(), .live = Live(3), .out = out});
  ExpectSameBits(out.Floats(), RunTokens(b, *w, c, Range(3)));
}

TEST_P(LinearTest, NanAndInfinityStayInTheirToken) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const TestMatrix m(dtype, 40, 256, 18);
    Case c = {.parts = {m.weight}, .x = Normals(5 * 256, 19), .options = {}};
    const auto w = Pack(GetParam(), {c.parts});
    const std::vector<float> clean = RunTokens(GetParam(), *w, c, {0, 2, 4});
    c.x[256 + 3] = NAN;
    c.x[3 * 256 + 200] = INFINITY;
    const std::vector<float> out = RunTokens(GetParam(), *w, c, Range(5));
    ExpectSameBits(PickVectors(out, 40, {0, 2, 4}), clean);
    for (int n = 0; n < 40; ++n) {
      EXPECT_TRUE(std::isnan(out[40 + n]));
      EXPECT_FALSE(std::isfinite(out[3 * 40 + n]));
    }
  }
}

TEST_P(LinearTest, ZeroOutputsGiveZeros) {
  const TestMatrix m(DType::kF8E4M3, 40, 256, 20);
  const Case c = {.parts = {m.weight}, .x = std::vector<float>(256), .options = {}};
  for (const float y : RunCase(GetParam(), c)) EXPECT_EQ(y, 0);
}

TEST_P(LinearTest, PartsOfSeveralTypesAreRefused) {
  const TestMatrix fp8(DType::kF8E4M3, 40, 256, 21), bf16(DType::kBF16, 40, 256, 22);
  const std::vector<WeightSource> mixed = {{{fp8.weight, bf16.weight}}};
  const auto packed = GetParam().ops->pack(GetParam().stream(), {.matrices = mixed});
  EXPECT_EQ(packed.status().code(), StatusCode::kUnimplemented);
}

TEST_P(LinearTest, FormatsThatNoProductReadsAreRefusedByName) {
  const TestTensor words(DType::kI32, {40, 32}), scales(DType::kF32, {40, 2});  // 8 codes a word
  const WeightFormat zero_points = {.values = WeightType::kInt4,
                                    .scales = {ScaleType::kF32, {.size = 1}, {.size = 128}},
                                    .zero_points = ZeroPoints::kPerGroup};
  WeightFormat permuted = zero_points;
  permuted.permuted_channels = true;
  for (const WeightFormat& format : {zero_points, permuted}) {
    for (const bool exact : {false, true}) {
      const std::vector<WeightSource> source = {
          {{{.values = words, .scales = scales, .format = format}}}};
      const auto packed = GetParam().ops->pack(GetParam().stream(),
                                               {.matrices = source, .exact_activations = exact});
      ASSERT_EQ(packed.status().code(), StatusCode::kUnimplemented);
      EXPECT_NE(packed.status().message().find(Describe(format) + ", which no product"),
                std::string::npos)
          << packed.status().message();
    }
  }
}

}  // namespace
}  // namespace fathom
