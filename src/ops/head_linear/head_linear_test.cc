#include <cmath>

#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(HeadLinearTest);

struct Case {
  std::vector<Parts> heads;
  std::vector<float> x;  // [tokens, heads, in]
  PackOptions options = {.exact_activations = true};

  int64_t in() const { return heads[0][0].values.dim(1); }
  int64_t width() const { return in() * static_cast<int64_t>(heads.size()); }
};

// Tokens of a tensor whose heads are 9 apart from each other, and whose tokens 5 more.
std::vector<float> RunTokens(const TestBackend& b, const PackedWeight& w, const Case& c,
                             const std::vector<int>& tokens) {
  const int64_t live = static_cast<int64_t>(tokens.size()), in = w.in + 9, out = w.out + 9;
  std::vector<float> wide((live + 1) * (w.count * in + 5), NAN);
  for (int64_t i = 0; i < live; ++i) {
    for (int64_t h = 0; h < w.count; ++h) {
      std::copy_n(&c.x[(tokens[i] * w.count + h) * w.in], w.in,
                  &wide[i * (w.count * in + 5) + h * in]);
    }
  }
  const TestTensor x(b.act(), {live + 1, w.count * in + 5}, wide);
  const TestTensor y(b.act(), {live + 1, w.count * out + 5});
  RunOp(b, &Ops::head_linear,
        {.x = TensorView(x.view().data(), b.act(), {live + 1, w.count, w.in},
                         {w.count * in + 5, in, 1}),
         .weight = &w,
         .live = Live(static_cast<int32_t>(live)),
         .out = TensorView(y.view().data(), b.act(), {live + 1, w.count, w.out},
                           {w.count * out + 5, out, 1})});
  EXPECT_TRUE(y.PoisonedFrom(live));
  const std::vector<float> all = y.Floats();
  const float poison = TestTensor(b.act(), {1}).Floats()[0];
  std::vector<float> result;
  for (int64_t i = 0; i < live; ++i) {
    const float* y = &all[i * (w.count * out + 5)];
    for (int64_t h = 0; h < w.count; ++h) {
      result.insert(result.end(), y + h * out, y + h * out + w.out);
      for (int64_t n = w.out; n < out; ++n) EXPECT_EQ(y[h * out + n], poison);
    }
  }
  return result;
}

std::vector<float> Exact(const Case& c, DType weights = DType::kF32) {
  std::vector<float> out;
  for (int64_t at = 0; at < static_cast<int64_t>(c.x.size()); at += c.in()) {
    const size_t head = at / c.in() % c.heads.size();
    const std::vector<float> y =
        ExactProduct({c.x.begin() + at, c.x.begin() + at + c.in()}, c.heads[head], weights);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

// kv_b_proj holds, per head, `nope` outputs of W_UK and `vdim` outputs of W_UV, all over `latent`.
struct KvB {
  Case uk, uv;
};
KvB MakeKvB(const WeightTensor& w, int64_t heads, int64_t nope, int64_t vdim, int tokens) {
  KvB kv_b;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t begin = h * (nope + vdim);
    kv_b.uk.heads.push_back({Transposed(SliceOutputs(w, begin, begin + nope))});
    kv_b.uv.heads.push_back({SliceOutputs(w, begin + nope, begin + nope + vdim)});
  }
  kv_b.uk.x = Normals(tokens * heads * nope, 1);
  kv_b.uv.x = Normals(tokens * heads * w.values.dim(1), 2);
  return kv_b;
}

TEST_P(HeadLinearTest, AbsorbedProjections) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    for (const int64_t heads : {1, 4, 16}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << ", heads: " << heads);
      // 96 + 40 outputs per head: heads begin anywhere in a scale tile.
      const TestMatrix m(dtype, heads * (96 + 40), 160, 3);
      const KvB kv_b = MakeKvB(m.weight, heads, 96, 40, 3);
      for (const Case* c : {&kv_b.uk, &kv_b.uv}) {
        const auto run = [&](const TestBackend& b) {
          const auto w = Pack(b, c->heads, c->options);
          EXPECT_FALSE(w->quantize_activations);
          return RunTokens(b, *w, *c, Range(3));
        };
        const double tolerance = 5e-6 + Rounding(GetParam());
        const std::vector<float> result = run(GetParam());
        if (GetParam().act() == DType::kF32) {
          ExpectClose(result, Exact(*c), tolerance);
          ExpectAsOracle(GetParam(), tolerance, run);
        } else {  // FP8 weights may have become BF16
          ExpectCloseToOneOf(result, {Exact(*c), Exact(*c, DType::kBF16)}, tolerance);
        }
      }
    }
  }
}

TEST_P(HeadLinearTest, ATokenDoesNotDependOnOthers) {
  const TestMatrix m(DType::kBF16, 4 * 48, 80, 4);
  const Case c = MakeKvB(m.weight, 4, 32, 16, 33).uk;
  const auto w = Pack(GetParam(), c.heads, c.options);
  ExpectTokenInvariance(33, 4 * 80, [&](const std::vector<int>& tokens) {
    return RunTokens(GetParam(), *w, c, tokens);
  });
  EXPECT_TRUE(RunTokens(GetParam(), *w, c, {}).empty());
}

TEST_P(HeadLinearTest, ATokenDoesNotDependOnHundreds) {
  // Strides that suit 16-byte copies.
  const int64_t tokens = 512, heads = 3, in = 96, out = 40;
  const TestMatrix m(DType::kBF16, heads * out, in, 6);
  std::vector<Parts> parts;
  for (int64_t h = 0; h < heads; ++h)
    parts.push_back({SliceOutputs(m.weight, h * out, (h + 1) * out)});
  const auto w = Pack(GetParam(), parts, {.exact_activations = true});
  const std::vector<float> x = Normals(tokens * heads * in, 7);
  const auto run = [&](int64_t live) {
    const std::vector<float> some(x.begin(), x.begin() + live * heads * in);
    TestTensor y(GetParam().act(), {live, heads, out});
    RunOp(GetParam(), &Ops::head_linear,
          {.x = TestTensor(GetParam().act(), {live, heads, in}, some),
           .weight = w.get(),
           .live = Live(static_cast<int32_t>(live)),
           .out = y});
    return y.Floats();
  };
  const std::vector<float> all = run(tokens);
  for (const int count : {1, 8, 63}) {
    SCOPED_TRACE(count);
    ExpectSameBits(run(count), PickVectors(all, heads * out, Range(count)));
  }
}

TEST_P(HeadLinearTest, NanStaysInItsTokenAndHead) {
  const TestMatrix m(DType::kBF16, 2 * 48, 80, 5);
  Case c = MakeKvB(m.weight, 2, 32, 16, 3).uk;
  const auto w = Pack(GetParam(), c.heads, c.options);
  const std::vector<float> clean = RunTokens(GetParam(), *w, c, Range(3));
  c.x[(1 * 2 + 1) * 32 + 7] = NAN;
  const std::vector<float> out = RunTokens(GetParam(), *w, c, Range(3));
  ExpectSameBits(PickVectors(out, 80, {0, 1, 2, 4, 5}), PickVectors(clean, 80, {0, 1, 2, 4, 5}));
  for (const float y : PickVectors(out, 80, {3})) EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace fathom
