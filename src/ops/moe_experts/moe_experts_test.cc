#include <algorithm>
#include <cmath>

#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(MoeExpertsTest);

constexpr double kTolerance = 1e-5;
// The product of gate and up is quantised: a last bit of it may tip a code.
constexpr double kFp8Tolerance = 2e-3;

struct Experts {
  Experts(DType dtype, int experts, int hidden, int inter) : hidden(hidden), inter(inter) {
    for (int e = 0; e < experts; ++e) {
      for (const auto& [out, in] : {std::pair{inter, hidden}, {inter, hidden}, {hidden, inter}}) {
        matrices.emplace_back(dtype, out, in, 100 + matrices.size());
      }
    }
    for (int e = 0; e < experts; ++e) {
      gate_up.push_back({matrices[3 * e].weight, matrices[3 * e + 1].weight});
      down.push_back({matrices[3 * e + 2].weight});
    }
  }
  int hidden, inter;
  std::vector<TestMatrix> matrices;
  std::vector<Parts> gate_up, down;
};

struct Case {
  std::vector<float> x;  // [tokens, hidden]
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int topk;
};

Case MakeCase(const Experts& e, int tokens, int topk) {
  Case c = {.x = Normals(tokens * e.hidden, 1), .ids = {}, .weights = {}, .topk = topk};
  Rng rng(2);
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> experts = Range(static_cast<int>(e.down.size()));
    for (int j = 0; j < topk; ++j) {
      std::swap(experts[j], experts[j + rng.Below(static_cast<uint32_t>(experts.size()) - j)]);
      c.ids.push_back(experts[j]);
      c.weights.push_back(rng.Uniform() * 2);
    }
  }
  return c;
}

struct Packed {
  Packed(const Backend& b, const Experts& e, PackOptions options = {})
      : gate_up(Pack(b, e.gate_up, options)), down(Pack(b, e.down, options)) {}
  std::unique_ptr<PackedWeight> gate_up, down;
};

// Runs `tokens` of the case with room for two more.
std::vector<float> RunTokens(const Backend& b, const Packed& w, const Case& c,
                             const std::vector<int>& tokens) {
  const int64_t live = static_cast<int64_t>(tokens.size()), hidden = w.down->out;
  std::vector<int32_t> ids;
  for (int t : tokens) {
    ids.insert(ids.end(), c.ids.begin() + t * c.topk, c.ids.begin() + (t + 1) * c.topk);
  }
  TestTensor out(b.act(), {live + 2, hidden});
  RunOp(
      b, &Ops::moe_experts,
      {.x = TestTensor(b.act(), {live + 2, hidden}, PickRows(c.x, hidden, tokens)),
       .ids = Ints({live + 2, c.topk}, ids),
       .weights = TestTensor(DType::kF32, {live + 2, c.topk}, PickRows(c.weights, c.topk, tokens)),
       .gate_up = w.gate_up.get(),
       .down = w.down.get(),
       .live = Live(static_cast<int32_t>(live)),
       .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> rows = out.Floats();
  rows.resize(live * hidden);
  return rows;
}

// The composition, by products of `multiply`.
template <class Multiply>
std::vector<float> Composition(const Experts& e, const Case& c, const Multiply& multiply) {
  std::vector<float> out;
  for (size_t t = 0; t * e.hidden < c.x.size(); ++t) {
    std::vector<float> y(e.hidden);
    for (int j = 0; j < c.topk; ++j) {
      const int32_t id = c.ids[t * c.topk + j];
      const std::vector<float> gate_up =
          multiply(PickRows(c.x, e.hidden, {static_cast<int>(t)}), e.gate_up[id]);
      std::vector<float> product(e.inter);
      for (int i = 0; i < e.inter; ++i) {
        product[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[e.inter + i];
      }
      const std::vector<float> down = multiply(product, e.down[id]);
      for (int i = 0; i < e.hidden; ++i) y[i] += c.weights[t * c.topk + j] * down[i];
    }
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

std::vector<float> Fp8(const Experts& e, const Case& c, bool ue8m0) {
  return Composition(e, c, [&](const std::vector<float>& x, const Parts& parts) {
    return Fp8Product(x, parts, ue8m0);
  });
}

// What the mode of the table makes of FP8 weights.
std::vector<float> Expected(const Backend& b, const Experts& e, const Case& c, bool ue8m0) {
  return b.activations == Fp8Activations::kExact ? Composition(e, c, ExactProduct)
                                                 : Fp8(e, c, ue8m0);
}
double Tolerance(const Backend& b) {
  return (b.activations == Fp8Activations::kExact ? kTolerance : kFp8Tolerance) + Rounding(b) +
         Summing(b, DType::kF8E4M3);
}

TEST_P(MoeExpertsTest, IsTheComposition) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [hidden, inter] : {std::pair{256, 64}, {96, 96}, {64, 224}, {128, 256}}) {
      const Experts e(dtype, 8, hidden, inter);
      for (const int topk : {1, 8}) {
        SCOPED_TRACE(testing::Message()
                     << Name(dtype) << " " << hidden << " " << inter << " " << topk);
        const Case c = MakeCase(e, 4, topk);
        const auto run = [&](const Backend& b) { return RunTokens(b, Packed(b, e), c, Range(4)); };
        if (dtype == DType::kF8E4M3) {
          ExpectClose(run(GetParam()), Expected(GetParam(), e, c, false), Tolerance(GetParam()));
          ExpectSameBits(run(Oracle()), Fp8(e, c, false));
        } else {
          ExpectClose(run(GetParam()), Composition(e, c, ExactProduct),
                      kTolerance + Rounding(GetParam()));
        }
        ExpectAsOracle(GetParam(), Tolerance(GetParam()), run);
      }
    }
  }
}

TEST_P(MoeExpertsTest, PowerOfTwoScales) {
  const Experts e(DType::kF8E4M3, 4, 128, 96);
  const Case c = MakeCase(e, 3, 2);
  const Packed w(GetParam(), e, {.scale_ue8m0 = true});
  ExpectClose(RunTokens(GetParam(), w, c, Range(3)), Expected(GetParam(), e, c, true),
              Tolerance(GetParam()));
}

TEST_P(MoeExpertsTest, ATokenDoesNotDependOnOthers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Experts e(dtype, 6, 96, 160);
    const Case c = MakeCase(e, 67, 3);
    const Packed w(GetParam(), e);
    ExpectRowInvariance(67, 96, [&](const std::vector<int>& tokens) {
      return RunTokens(GetParam(), w, c, tokens);
    });
    EXPECT_TRUE(RunTokens(GetParam(), w, c, {}).empty());
  }
}

TEST_P(MoeExpertsTest, ATokenDoesNotDependOnHundreds) {
  const Experts e(DType::kBF16, 4, 96, 88);
  const Case c = MakeCase(e, 512, 2);
  const Packed w(GetParam(), e);
  const std::vector<float> all = RunTokens(GetParam(), w, c, Range(512));
  for (const int rows : {1, 8, 63}) {
    SCOPED_TRACE(rows);
    ExpectSameBits(RunTokens(GetParam(), w, c, Range(rows)), PickRows(all, 96, Range(rows)));
  }
}

TEST_P(MoeExpertsTest, AllTokensOnOneExpertAndTheSameExpertTwice) {
  const Experts e(DType::kF8E4M3, 4, 128, 128);
  Case c = MakeCase(e, 20, 2);
  std::fill(c.ids.begin(), c.ids.end(), 3);
  const Packed w(GetParam(), e);
  ExpectClose(RunTokens(GetParam(), w, c, Range(20)), Expected(GetParam(), e, c, false),
              Tolerance(GetParam()));
}

TEST_P(MoeExpertsTest, NanStaysInItsRow) {
  const Experts e(DType::kF8E4M3, 4, 128, 96);
  Case c = MakeCase(e, 5, 2);
  const Packed w(GetParam(), e);
  const std::vector<float> clean = RunTokens(GetParam(), w, c, Range(5));
  c.x[2 * 128 + 1] = NAN;
  const std::vector<float> out = RunTokens(GetParam(), w, c, Range(5));
  ExpectSameBits(PickRows(out, 128, {0, 1, 3, 4}), PickRows(clean, 128, {0, 1, 3, 4}));
  for (const float y : PickRows(out, 128, {2})) EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace fathom
