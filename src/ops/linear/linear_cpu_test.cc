// What is particular to the CPU table's products: bits, layouts, vector widths.
#include "cpu/simd.h"  // must come before Highway

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/rng.h"
#include "cpu/cpu_device.h"
#include "cpu/cpu_features.h"
#include "ops/ops.h"
#include "products/cpu/pack_tokens.h"

namespace fathom {
namespace {

// A weight of a checkpoint: FP8 with scale tiles, or BF16; cut out of a larger one.
struct Source {
  Source(DType dtype, int64_t out, int64_t in, int64_t out_offset, int64_t in_offset, uint64_t seed)
      : values(static_cast<size_t>((out + out_offset) * (in + in_offset)) * ByteSize(dtype)) {
    Rng rng(seed);
    const int64_t outputs = out + out_offset, channels = in + in_offset;
    WeightTensor whole = StoredWeight(TensorView(values.data(), dtype, {outputs, channels}));
    if (dtype == DType::kF8E4M3) {
      for (uint8_t& code : values) {
        code = static_cast<uint8_t>(rng.Below(256));
        if ((code & 0x7f) == 0x7f) code = 3;
      }
      const int64_t out_tiles = (outputs + 127) / 128, in_tiles = (channels + 127) / 128;
      scales.resize(static_cast<size_t>(out_tiles * in_tiles));
      for (float& scale : scales) scale = (rng.Uniform() + 0.5f) * 0.01f;
      whole.scales = TensorView(scales.data(), DType::kF32, {out_tiles, in_tiles});
    } else {
      BF16* to = reinterpret_cast<BF16*>(values.data());
      for (int64_t i = 0; i < outputs * channels; ++i) to[i] = ToBF16(rng.Normal());
    }
    tensor = SliceChannels(SliceOutputs(whole, out_offset, outputs), in_offset, channels);
  }
  std::vector<uint8_t> values;
  std::vector<float> scales;
  WeightTensor tensor;
};

std::vector<float> Product(const Ops& ops, int threads, const WeightSource& source,
                           const std::vector<float>& x, int64_t tokens, bool ue8m0 = false) {
  CpuDevice device(threads);
  auto weight = ops.pack(device.stream(), {.matrices = {&source, 1}, .scale_ue8m0 = ue8m0});
  CHECK(weight.ok(), "{}", weight.status().ToString());
  const int64_t in = (*weight)->in, out = (*weight)->out;
  std::vector<float> y(static_cast<size_t>(tokens * out), -1.0f);
  int32_t live = static_cast<int32_t>(tokens);
  LinearArgs args;
  args.x = TensorView::ReadOnly(x.data(), DType::kF32, {tokens, in});
  args.weight = weight->get();
  args.live = TensorView(&live, DType::kI32, {1});
  args.out = TensorView(y.data(), DType::kF32, {tokens, out});
  Buffer workspace(ops.linear.Workspace(device.stream(), args));
  OpContext context{device.stream(), {workspace.data(), workspace.size()}};
  ops.linear(context, args);
  return y;
}

std::vector<float> Normals(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = rng.Normal();
  return x;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ||a - b|| / ||b||.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

// Runs a test once per vector width that this machine has.
class EveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(Linear, EveryTarget,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(EveryTarget, Fp8EqualsTheEmulatingReference) {
  struct Shape {
    int64_t out, in, out_offset, in_offset;
  };
  for (const Shape& s : {Shape{32, 128, 0, 0},
                         {1, 1, 0, 0},
                         {96, 300, 0, 0},
                         {40, 704, 100, 64},
                         {576, 256, 0, 0},
                         {257, 130, 120, 127}}) {
    const Source gate(DType::kF8E4M3, s.out, s.in, s.out_offset, s.in_offset, 1);
    const Source up(DType::kF8E4M3, s.out, s.in, 0, s.in_offset, 2);
    const WeightSource source{{gate.tensor, up.tensor}};
    for (const int64_t tokens : {1, 2, 5, 11, 12, 13, 150}) {
      const std::vector<float> x = Normals(tokens * s.in, 3);
      for (const bool ue8m0 : {false, true}) {
        const std::vector<float> y =
            Product(CpuOps(Fp8Activations::kQuantized), 2, source, x, tokens, ue8m0);
        const std::vector<float> expected =
            Product(ReferenceOps(Fp8Activations::kQuantized), 1, source, x, tokens, ue8m0);
        // Pairs of channels are summed in another order.
        if (HasBf16Dot()) {
          EXPECT_LT(Distance(y, expected), 2e-6) << s.out << " x " << s.in;
        } else {
          EXPECT_TRUE(SameBits(y, expected)) << s.out << " x " << s.in << ", " << tokens;
        }
      }
    }
  }
}

const Ops* const kTables[] = {&CpuOps(Fp8Activations::kExact), &CpuOps(Fp8Activations::kQuantized),
                              &CpuBF16Ops(), &CpuIntegerOps(WeightFormat::kInt8),
                              &CpuIntegerOps(WeightFormat::kInt4)};

TEST(LinearCpu, EveryTableRefusesZeroPointsOfGroups) {
  Source w(DType::kF8E4M3, 40, 256, 0, 0, 1);
  w.tensor.format.zero_points = ZeroPoints::kPerGroup;
  const WeightSource source{{w.tensor}};
  CpuDevice device(1);
  for (const Ops* ops : kTables) {
    const auto packed = ops->pack(device.stream(), {.matrices = {&source, 1}});
    EXPECT_NE(packed.status().message().find("zero points per group"), std::string::npos);
  }
}

TEST_P(EveryTarget, ATokensBitsAreItsOwn) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Source w(dtype, 200, 392, 0, 0, 1);
    const WeightSource source{{w.tensor}};
    constexpr int64_t kTokens = 650;  // more than kTileTokens, more than a chunk
    std::vector<float> x = Normals(kTokens * 392, 3);
    for (size_t i = 500 * 392; i < x.size(); ++i) x[i] *= 1e-38f;  // of subnormal products
    for (const Ops* ops : kTables) {
      const std::vector<float> all = Product(*ops, 3, source, x, kTokens);
      for (const int64_t t : {0, 1, 13, 127, 128, 255, 511, 512, 599}) {
        for (const int64_t n : {1, 2, 5, 17, 31, 47}) {
          const std::vector<float> some(x.begin() + t * 392, x.begin() + (t + n) * 392);
          EXPECT_TRUE(SameBits(Product(*ops, 1, source, some, n),
                               {all.begin() + t * 200, all.begin() + (t + n) * 200}))
              << t << " " << n;
        }
      }
    }
  }
}

TEST_P(EveryTarget, IntegersHaveTheSameBitsEverywhere) {
  const Source w(DType::kF8E4M3, 200, 392, 0, 0, 1);
  const WeightSource source{{w.tensor}};
  for (const WeightFormat& format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const int64_t tokens : {1, 2, 7, 150}) {
      const std::vector<float> x = Normals(tokens * 392, 3);
      hwy::SetSupportedTargetsForTest(0);
      const std::vector<float> best = Product(CpuIntegerOps(format), 2, source, x, tokens);
      hwy::SetSupportedTargetsForTest(GetParam());
      EXPECT_TRUE(SameBits(Product(CpuIntegerOps(format), 2, source, x, tokens), best)) << tokens;
    }
  }
}

TEST_P(EveryTarget, BF16OpsRoundActivations) {
  if (!HasBf16Dot()) GTEST_SKIP();
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Source w(dtype, 70, 392, 7, 9, 1);
    const WeightSource source{{w.tensor}};
    for (const int64_t tokens : {1, 3, 40}) {
      const std::vector<float> x = Normals(tokens * 392, 3);
      std::vector<float> rounded;
      for (const float v : x) rounded.push_back(ToFloat(ToBF16(v)));
      EXPECT_TRUE(SameBits(Product(CpuBF16Ops(), 2, source, x, tokens),
                           Product(CpuOps(Fp8Activations::kExact), 2, source, rounded, tokens)));
    }
  }
}

// What integer products are, as plainly as can be written: of a token with an output's weights.
double IntegerProduct(
    const std::vector<float>& x, const WeightTensor& w, int64_t out,
    const std::function<void(const std::vector<float>&, std::vector<float>&)>& quantize_weights) {
  double sum = 0;
  const int64_t in = w.values.dim(1);
  for (int64_t begin = 0; begin < in; begin += kScaleTile) {
    const int64_t n = std::min<int64_t>(kScaleTile, in - begin);
    float largest = 0;
    std::vector<float> weights;
    for (int64_t k = begin; k < begin + n; ++k) {
      weights.push_back(Dequantize(w, out, k));
      largest = std::max(largest, std::fabs(x[static_cast<size_t>(k)]));
    }
    std::vector<float> rounded;
    quantize_weights(weights, rounded);
    for (int64_t k = 0; k < n; ++k) {
      const double code = std::nearbyint(x[static_cast<size_t>(begin + k)] * (127.0f / largest));
      sum += code * (largest / 127.0f) * rounded[static_cast<size_t>(k)];
    }
  }
  return sum;
}

TEST_P(EveryTarget, Int8IsTheProductOfRoundedNumbers) {
  const auto quantize = [](const std::vector<float>& w, std::vector<float>& rounded) {
    float largest = 0;
    for (const float v : w) largest = std::max(largest, std::fabs(v));
    const float scale = largest / 127.0f;
    for (const float v : w) rounded.push_back(std::nearbyint(v * (1 / scale)) * scale);
  };
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Source w(dtype, 70, 392, 70, 9, 1);
    const WeightSource source{{w.tensor}};
    for (const int64_t tokens : {1, 3, 40}) {
      const std::vector<float> x = Normals(tokens * 392, 3);
      const std::vector<float> y =
          Product(CpuIntegerOps(WeightFormat::kInt8), 2, source, x, tokens);
      std::vector<float> expected;
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<float> token(x.begin() + t * 392, x.begin() + (t + 1) * 392);
        for (int64_t o = 0; o < 70; ++o) {
          expected.push_back(static_cast<float>(IntegerProduct(token, w.tensor, o, quantize)));
        }
      }
      EXPECT_LT(Distance(y, expected), 1e-6);
    }
  }
}

// Weights that kInt4 holds exactly come back exactly; others within half a step of a sub-run.
TEST_P(EveryTarget, Int4) {
  constexpr int64_t kIn = 392, kOut = 70;
  Rng rng(7);
  std::vector<float> exact(kOut * kIn);
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t k = 0; k < kIn; ++k) {
      // The first sub-run of each run has multiplier 15 and uses the whole range.
      const int64_t sub = k % kScaleTile / kSubRun, multiplier = 15 - 4 * sub;
      const int64_t code = static_cast<int64_t>(rng.Below(15)) - 7;
      const float largest = k % kSubRun == 0 ? -7.5f : static_cast<float>(code);
      exact[static_cast<size_t>(o * kIn + k)] = 0.125f * static_cast<float>(multiplier) * largest;
    }
  }
  const WeightTensor w = StoredWeight(TensorView(exact.data(), DType::kF32, {kOut, kIn}));
  const WeightSource source{{w}};
  for (const int64_t tokens : {1, 3, 40}) {
    const std::vector<float> x = Normals(tokens * kIn, 3);
    const std::vector<float> y = Product(CpuIntegerOps(WeightFormat::kInt4), 2, source, x, tokens);
    std::vector<float> expected;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<float> token(x.begin() + t * kIn, x.begin() + (t + 1) * kIn);
      for (int64_t o = 0; o < kOut; ++o) {
        // -7.5 steps become -8, all else stays.
        expected.push_back(static_cast<float>(
            IntegerProduct(token, w, o, [](const std::vector<float>& in, std::vector<float>& out) {
              for (size_t k = 0; k < in.size(); ++k) {
                out.push_back(k % kSubRun == 0 ? in[k] / 7.5f * 8 : in[k]);
              }
            })));
      }
    }
    EXPECT_LT(Distance(y, expected), 1e-6);
  }
}

TEST_P(EveryTarget, BF16IsTheProductOfItsRoundedWeights) {
  const Source w(DType::kBF16, 70, 520, 0, 0, 1);
  const WeightSource source{{w.tensor}};
  for (const int64_t tokens : {1, 3, 40}) {
    const std::vector<float> x = Normals(tokens * 520, 3);
    const std::vector<float> y = Product(CpuOps(Fp8Activations::kQuantized), 2, source, x, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t o = 0; o < 70; ++o) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < 520; ++k) {
          const double product =
              double{x[static_cast<size_t>(t * 520 + k)]} * Dequantize(w.tensor, o, k);
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(y[static_cast<size_t>(t * 70 + o)], sum, size * 2e-6);
      }
    }
  }
}

// Activations that integers cannot hold spoil their own token, and no other.
TEST_P(EveryTarget, ActivationsThatAreNotFiniteOrTiny) {
  const Source w(DType::kBF16, 64, 256, 0, 0, 1);
  const WeightSource source{{w.tensor}};
  const std::vector<float> usual = Normals(256, 3);
  std::vector<float> x;
  for (const float odd : {0.0f, NAN, INFINITY, -INFINITY, 1e-40f}) {
    x.insert(x.end(), usual.begin(), usual.end());
    if (odd != 0) std::fill(x.end() - 256, x.end() - 200, odd);
  }
  std::fill(x.end() - 256, x.end(), 1e-40f);  // a token of nothing else
  for (const WeightFormat& format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const std::vector<float> y = Product(CpuIntegerOps(format), 2, source, x, 5);
    const std::vector<float> alone = Product(CpuIntegerOps(format), 1, source, usual, 1);
    EXPECT_TRUE(SameBits(alone, {y.begin(), y.begin() + 64}));
    for (size_t i = 64; i < 4 * 64; ++i) EXPECT_FALSE(std::isfinite(y[i])) << i;
    for (size_t i = 4 * 64; i < y.size(); ++i) EXPECT_LT(std::fabs(y[i]), 1e-30f) << i;
  }
}

// A NaN code makes its output NaN for every token, and no other.
TEST_P(EveryTarget, NanWeights) {
  Source w(DType::kF8E4M3, 64, 256, 0, 0, 1);
  w.values[40 * 256 + 200] = 0xff;
  const WeightSource source{{w.tensor}};
  const std::vector<float> x = Normals(3 * 256, 3);
  const std::vector<float> y = Product(CpuOps(Fp8Activations::kQuantized), 2, source, x, 3);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i % 64 == 40) << i;
}

// The bits of QuantizeRun, for numbers of all sizes and kinds.
TEST_P(EveryTarget, QuantizeTokens) {
  CpuDevice device(2);
  const Source source(DType::kF8E4M3, 1, 600, 0, 28, 1);  // runs of 100, 128 (3 times) and 116
  const WeightSource one{{source.tensor}};
  Rng rng(5);
  constexpr int64_t kTokens = 200, kIn = 600;
  std::vector<float> x(kTokens * kIn);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t k = 0; k < kIn; ++k) {
      float& v = x[static_cast<size_t>(t * kIn + k)];
      const uint32_t kind = t % 10 == 0 ? rng.Below(400) : 100;
      v = rng.Normal() * std::ldexp(1.0f, static_cast<int>(rng.Below(24)) - 20 + t % 3 * 30);
      if (t % 7 == 0) v = 0.0625f * static_cast<float>(static_cast<int>(rng.Below(14336)) - 7168);
      if (t % 7 == 1) v = std::bit_cast<float>(rng.Next() & 0x807fffffu);  // subnormal
      if (kind == 0) v = NAN;
      if (kind == 1) v = -INFINITY;
      if (kind < 40 && kind > 1) v = 0;
    }
  }
  for (const bool ue8m0 : {false, true}) {
    auto packed = CpuOps(Fp8Activations::kQuantized)
                      .pack(device.stream(), {.matrices = {&one, 1}, .scale_ue8m0 = ue8m0});
    ASSERT_TRUE(packed.ok());
    const CpuWeight& w = AsCpu(packed->get());
    ASSERT_EQ(w.runs(), 5);
    Arena measure = Arena::Measuring();
    PackedTokens(measure, w, kTokens);
    Buffer memory(measure.used());
    Arena arena(memory.data(), memory.size());
    const PackedTokens to(arena, w, kTokens);
    const TokenActivations packed_x = to.Pack(device.stream().pool(), w, {x.data(), kIn}, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t run = 0; run < w.runs(); ++run) {
        const int64_t begin = w.run_begin(run), n = w.run_end(run) - begin;
        uint8_t codes[kScaleTile];
        const float scale =
            QuantizeRun({x.data() + t * kIn + begin, static_cast<size_t>(n)}, ue8m0, codes);
        const float got_scale = to.scales.As<float>(run)[t];
        ASSERT_TRUE(got_scale == scale || (std::isnan(scale) && std::isnan(got_scale)));
        for (int64_t k = 0; k < n; ++k) {
          const float value = ToFloat(E4M3{codes[k]});
          const std::byte* record =
              packed_x.values + run * packed_x.run_stride + t * packed_x.token_stride;
          const float got = w.dots ? ToFloat(reinterpret_cast<const BF16*>(record)[k])
                                   : reinterpret_cast<const float*>(record)[k];
          ASSERT_TRUE(std::isnan(value)
                          ? std::isnan(got)
                          : std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(got))
              << x[static_cast<size_t>(t * kIn + begin + k)] << " / " << scale << ": " << got
              << ", not " << value;
        }
      }
    }
  }
}

TEST(PackCpu, RefusesMixedParts) {
  CpuDevice device(1);
  const Source fp8(DType::kF8E4M3, 32, 128, 0, 0, 1), bf16(DType::kBF16, 32, 128, 0, 0, 1);
  const WeightSource source{{fp8.tensor, bf16.tensor}};
  const auto packed =
      CpuOps(Fp8Activations::kQuantized).pack(device.stream(), {.matrices = {&source, 1}});
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace fathom
