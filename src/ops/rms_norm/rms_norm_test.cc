#include <algorithm>
#include <cmath>

#include "ops/testing.h"
#include "quant/e4m3.h"

namespace fathom {
namespace {

EVERY_BACKEND(RmsNormTest);

struct Case {
  int width;
  int tokens = 1;
  bool residual = false;
  std::vector<float> x, r, weight;
};

Case MakeCase(int width, int tokens, bool residual) {
  return {width,
          tokens,
          residual,
          Normals(tokens * width, 1),
          Normals(tokens * width, 2),
          Normals(width, 3)};
}

struct Output {
  std::vector<float> out, residual;
};

// Runs `tokens` of the case with room for two more.
Output RunCase(const TestBackend& b, const Case& c, const std::vector<int>& tokens,
               DType residual_type = DType::kF32) {
  const int live = static_cast<int>(tokens.size());
  const TestTensor x(b.act(), {live + 2, c.width}, PickVectors(c.x, c.width, tokens));
  TestTensor residual, out(b.act(), {live + 2, c.width});
  if (c.residual) {
    residual = TestTensor(residual_type, {live + 2, c.width}, PickVectors(c.r, c.width, tokens));
  }
  const TestTensor weight(DType::kF32, {c.width}, c.weight), count = Live(live);
  RunOp(b, &Ops::rms_norm,
        {.x = x, .residual = residual, .weight = weight, .eps = 1e-5f, .live = count, .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  Output output = {.out = out.Floats(), .residual = {}};
  output.out.resize(live * c.width);
  if (c.residual) {
    EXPECT_TRUE(residual.PoisonedFrom(live));
    output.residual = residual.Floats();
    output.residual.resize(live * c.width);
  }
  return output;
}

// The formula, in double.
Output Formula(const Case& c) {
  Output output;
  for (int t = 0; t < c.tokens; ++t) {
    std::vector<double> x(c.width);
    double squares = 0;
    for (int i = 0; i < c.width; ++i) {
      x[i] = c.x[t * c.width + i] + (c.residual ? double{c.r[t * c.width + i]} : 0);
      squares += x[i] * x[i];
      if (c.residual) output.residual.push_back(static_cast<float>(x[i]));
    }
    for (int i = 0; i < c.width; ++i) {
      output.out.push_back(
          static_cast<float>(x[i] / std::sqrt(squares / c.width + 1e-5) * c.weight[i]));
    }
  }
  return output;
}

TEST_P(RmsNormTest, IsTheFormula) {
  for (const int width : {1, 7, 64, 128, 257, 512, 7168}) {
    for (const bool residual : {false, true}) {
      SCOPED_TRACE(testing::Message() << width << (residual ? " with residual" : ""));
      const Case c = MakeCase(width, 3, residual);
      const Output expected = Formula(c);
      for (const DType type : {DType::kF32, GetParam().act()}) {
        const Output got = RunCase(GetParam(), c, Range(3), type);
        ExpectClose(got.out, expected.out, 2e-6 + Rounding(GetParam()));
        ExpectClose(got.residual, expected.residual,
                    1e-7 + (type == DType::kF32 ? 0 : Rounding(GetParam())));
      }
      ExpectAsOracle(GetParam(), 2e-6 + Rounding(GetParam()),
                     [&](const TestBackend& b) { return RunCase(b, c, Range(3)).out; });
    }
  }
}

TEST_P(RmsNormTest, NoTokens) {
  EXPECT_TRUE(RunCase(GetParam(), MakeCase(64, 1, true), {}).out.empty());
}

TEST_P(RmsNormTest, ATokenDoesNotDependOnOthers) {
  for (const bool residual : {false, true}) {
    const Case c = MakeCase(257, 33, residual);
    ExpectTokenInvariance(33, 257, [&](const std::vector<int>& tokens) {
      return RunCase(GetParam(), c, tokens).out;
    });
  }
}

TEST_P(RmsNormTest, NanAndInfinityStayInTheirToken) {
  Case c = MakeCase(64, 4, false);
  const std::vector<float> clean = RunCase(GetParam(), c, {1, 3}).out;
  c.x[5] = NAN;
  c.x[2 * 64 + 5] = INFINITY;
  const std::vector<float> out = RunCase(GetParam(), c, Range(4)).out;
  ExpectSameBits(PickVectors(out, 64, {1, 3}), clean);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(out[i]));
  EXPECT_TRUE(std::isnan(out[2 * 64 + 5]));  // inf / inf
  EXPECT_EQ(out[2 * 64 + 6], 0);
}

TEST_P(RmsNormTest, OfAResidualStream) {
  const Case c = MakeCase(257, 3, false);
  const TestTensor x(DType::kF32, {3, 257}, c.x), out(GetParam().act(), {3, 257});
  RunOp(GetParam(), &Ops::rms_norm,
        {.x = x,
         .weight = TestTensor(DType::kF32, {257}, c.weight),
         .eps = 1e-5f,
         .live = Live(3),
         .out = out});
  ExpectClose(out.Floats(), Formula(c).out, 2e-6 + Rounding(GetParam()));
}

// Where a table makes it; else it is left alone.
TEST_P(RmsNormTest, QuantizedCopy) {
  const TestBackend& b = GetParam();
  for (const int tokens : {3, 8, 9, 40}) {
    for (const int width : {128, 144, 512, 1536, 2048, 7168}) {
      for (const bool ue8m0 : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " x " << width << (ue8m0 ? " ue8m0" : ""));
        Case c = MakeCase(width, tokens, true);
        if (tokens == 40) c.x[5 * width + 7] = NAN, c.x[6 * width + 100] = INFINITY;
        const TestTensor x(b.act(), {tokens, width}, c.x), r(DType::kF32, {tokens, width}, c.r);
        const TestTensor weight(DType::kF32, {width}, c.weight), out(b.act(), {tokens, width});
        const int64_t runs = (width + 127) / 128, pitch = (tokens + 31) / 32 * 32;
        const TestTensor codes(DType::kF8E4M3, {tokens, width}), scales(DType::kF32, {runs, pitch});
        RunOp(b, &Ops::rms_norm,
              {.x = x,
               .residual = r,
               .weight = weight,
               .eps = 1e-5f,
               .live = Live(tokens - 2),
               .out = out,
               .quantized = {codes, scales, ue8m0}});
        EXPECT_TRUE(codes.PoisonedFrom(tokens - 2));
        if (codes.PoisonedFrom(0)) {
          EXPECT_TRUE(scales.PoisonedFrom(0));
          continue;
        }
        const std::vector<float> normed = out.Floats(), got_scales = scales.Floats();
        const auto* got = static_cast<const uint8_t*>(codes.view().data());
        for (int t = 0; t < tokens - 2; ++t) {
          for (int64_t run = 0; run < runs; ++run) {
            const int64_t begin = run * 128, end = std::min<int64_t>(width, begin + 128);
            std::vector<uint8_t> expected(end - begin);
            const float scale =
                QuantizeRun({&normed[t * width + begin], expected.size()}, ue8m0, expected.data());
            ExpectSameBits({got_scales[run * pitch + t]}, {scale});
            EXPECT_EQ(expected,
                      std::vector<uint8_t>(got + t * width + begin, got + t * width + end));
          }
        }
      }
    }
  }
}

TEST_P(RmsNormTest, AllZerosGiveZeros) {
  Case c = MakeCase(64, 1, false);
  c.x.assign(64, 0);
  for (const float y : RunCase(GetParam(), c, {0}).out) EXPECT_EQ(y, 0);
}

TEST_P(RmsNormTest, StridedTokensAndInPlace) {
  // kv_a's latents lie in vectors of 576, of which the norm takes and replaces 512.
  const Case c = MakeCase(512, 3, false);
  const TestBackend& b = GetParam();
  std::vector<float> wide(3 * 576, 5);
  for (int t = 0; t < 3; ++t) std::copy_n(&c.x[t * 512], 512, &wide[t * 576]);
  const TestTensor x(b.act(), {3, 576}, wide), weight(DType::kF32, {512}, c.weight);
  const TensorView latents = x.view().Slice(1, 0, 512);
  RunOp(b, &Ops::rms_norm,
        {.x = latents, .weight = weight, .eps = 1e-5f, .live = Live(3), .out = latents});
  const std::vector<float> out = x.Floats(), expected = RunCase(b, c, Range(3)).out;
  for (int t = 0; t < 3; ++t) {
    ExpectSameBits({&out[t * 576], &out[t * 576 + 512]},
                   {&expected[t * 512], &expected[t * 512] + 512});
    for (int i = 512; i < 576; ++i) EXPECT_EQ(out[t * 576 + i], 5);
  }
}

}  // namespace
}  // namespace fathom
