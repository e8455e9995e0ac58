#include <algorithm>
#include <cmath>

#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(MoeExpertsTest);

constexpr double kTolerance = 1e-5;
// The product of gate and up is quantised: where it is not right to the bit, a code may tip.
constexpr double kTipped = 2e-3;

struct Experts {
  // `exact`: of FP8, with products of gate and up that every sum gets right.
  Experts(DType dtype, int experts, int hidden, int inter, bool exact = false)
      : hidden(hidden), inter(inter) {
    for (int e = 0; e < experts; ++e) {
      for (const auto& [out, in] : {std::pair{inter, hidden}, {inter, hidden}, {hidden, inter}}) {
        const uint64_t seed = 100 + matrices.size();
        if (exact && matrices.size() % 3 != 2) {
          matrices.emplace_back(dtype, out, in, seed, Signs(out * in, seed, 64));
        } else {
          matrices.emplace_back(dtype, out, in, seed);
        }
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
  int shared = 0;
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
  Packed(const TestBackend& b, const Experts& e, PackOptions options = {})
      : gate_up(Pack(b, e.gate_up, options)), down(Pack(b, e.down, options)) {}
  std::unique_ptr<PackedWeight> gate_up, down;
};

// Runs `tokens` of the case with room for two more.
std::vector<float> RunTokens(const TestBackend& b, const Packed& w, const Case& c,
                             const std::vector<int>& tokens) {
  const int64_t live = static_cast<int64_t>(tokens.size()), hidden = w.down->out;
  std::vector<int32_t> ids;
  for (int t : tokens) {
    ids.insert(ids.end(), c.ids.begin() + t * c.topk, c.ids.begin() + (t + 1) * c.topk);
  }
  TestTensor out(b.act(), {live + 2, hidden});
  RunOp(b, &Ops::moe_experts,
        {.x = TestTensor(b.act(), {live + 2, hidden}, PickVectors(c.x, hidden, tokens)),
         .ids = Ints({live + 2, c.topk}, ids),
         .shared = c.shared,
         .weights =
             TestTensor(DType::kF32, {live + 2, c.topk}, PickVectors(c.weights, c.topk, tokens)),
         .gate_up = w.gate_up.get(),
         .down = w.down.get(),
         .live = Live(static_cast<int32_t>(live)),
         .out = out});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> result = out.Floats();
  result.resize(live * hidden);
  return result;
}

// The composition, by products of `multiply`; the product of gate and up, and each expert's output,
// rounded to types.
template <class Multiply>
std::vector<float> Composition(const Experts& e, const Case& c, const Multiply& multiply,
                               DType product_type = DType::kF32, DType y_type = DType::kF32) {
  std::vector<float> out;
  for (size_t t = 0; t * e.hidden < c.x.size(); ++t) {
    std::vector<float> y(e.hidden);
    for (int j = 0; j < c.topk; ++j) {
      const int32_t id = c.ids[t * c.topk + j];
      const std::vector<float> gate_up =
          multiply(PickVectors(c.x, e.hidden, {static_cast<int>(t)}), e.gate_up[id]);
      const std::vector<float> down =
          Rounded(multiply(SiluProduct(gate_up, DType::kF32, product_type), e.down[id]), y_type);
      for (int i = 0; i < e.hidden; ++i) y[i] += c.weights[t * c.topk + j] * down[i];
    }
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

// By products with quantised activations, or exact ones.
auto Products(bool quantized, bool ue8m0, Fp8Sums sums = Fp8Sums::kReference) {
  return [=](const std::vector<float>& x, const Parts& parts) {
    return quantized ? Fp8Product(x, parts, ue8m0, sums) : ExactProduct(x, parts);
  };
}

double Tolerance(const TestBackend& b, DType weights) {
  if (b.activations == Fp8Activations::kExact || weights != DType::kF8E4M3) {
    return kTolerance + Rounding(b);
  }
  return kTolerance + (b.act() == DType::kF32 ? kTipped : Rounding(b) / 4);
}

// The composition within `tolerance`. The contract leaves it to tables with BF16 activations
// whether the product of gate and up and each expert's output are rounded to them.
void ExpectComposition(const TestBackend& b, const std::vector<float>& result, const Experts& e,
                       const Case& c, double tolerance, bool ue8m0 = false) {
  const bool quantized = b.activations == Fp8Activations::kQuantized &&
                         e.matrices[0].values.view().dtype() == DType::kF8E4M3;
  std::vector<std::vector<float>> right;
  for (const Fp8Sums sums : SumsOf(b)) {
    for (const auto& [product_type, y_type] : {std::pair{DType::kF32, DType::kF32},
                                               {DType::kF32, DType::kBF16},
                                               {DType::kBF16, DType::kBF16}}) {
      if (b.act() == DType::kF32 && !right.empty()) break;
      right.push_back(Composition(e, c, Products(quantized, ue8m0, sums), product_type, y_type));
    }
  }
  ExpectCloseToOneOf(result, right, tolerance);
}

TEST_P(MoeExpertsTest, IsTheComposition) {
  const TestBackend& b = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [hidden, inter] : {std::pair{256, 64}, {96, 96}, {64, 224}, {128, 256}}) {
      const Experts e(dtype, 10, hidden, inter);
      for (const int topk : {1, 8, 9, 10}) {
        if (topk > 8 && hidden != 128) continue;  // one shape suffices
        SCOPED_TRACE(testing::Message()
                     << Name(dtype) << " " << hidden << " " << inter << " " << topk);
        const Case c = MakeCase(e, 4, topk);
        const auto run = [&](const TestBackend& each) {
          return RunTokens(each, Packed(each, e), c, Range(4));
        };
        const double tolerance = Tolerance(b, dtype);
        ExpectComposition(b, run(b), e, c, tolerance);
        if (dtype == DType::kF8E4M3) {
          ExpectSameBits(run(Oracle()), Composition(e, c, Products(true, false)));
        }
        if (b.act() == DType::kF32) ExpectAsOracle(b, tolerance, run);
      }
    }
  }
}

TEST_P(MoeExpertsTest, IsTheCompositionWhereNoCodeTips) {
  for (const auto& [hidden, inter] : {std::pair{256, 64}, {96, 96}, {64, 224}, {128, 256}}) {
    SCOPED_TRACE(testing::Message() << hidden << " " << inter);
    const Experts e(DType::kF8E4M3, 8, hidden, inter, /*exact=*/true);
    Case c = MakeCase(e, 4, 3);
    c.x = Signs(4 * hidden, 1);
    ExpectComposition(GetParam(), RunTokens(GetParam(), Packed(GetParam(), e), c, Range(4)), e, c,
                      kTolerance + Rounding(GetParam()) / 4);
  }
}

TEST_P(MoeExpertsTest, PowerOfTwoScales) {
  const Experts e(DType::kF8E4M3, 4, 128, 96);
  const Case c = MakeCase(e, 3, 2);
  const Packed w(GetParam(), e, {.scale_ue8m0 = true});
  ExpectComposition(GetParam(), RunTokens(GetParam(), w, c, Range(3)), e, c,
                    Tolerance(GetParam(), DType::kF8E4M3), /*ue8m0=*/true);
}

TEST_P(MoeExpertsTest, ATokenDoesNotDependOnOthers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Experts e(dtype, 6, 224, 400);
    const Case c = MakeCase(e, 67, 3);
    const Packed w(GetParam(), e);
    ExpectTokenInvariance(67, 224, [&](const std::vector<int>& tokens) {
      return RunTokens(GetParam(), w, c, tokens);
    });
    EXPECT_TRUE(RunTokens(GetParam(), w, c, {}).empty());
  }
}

TEST_P(MoeExpertsTest, ATokenDoesNotDependOnHundreds) {
  // 257: V3's, with the shared expert.
  for (const auto& [experts, tokens] : {std::pair{4, 512}, {257, 2304}}) {
    const Experts e(DType::kBF16, experts, 96, 88);
    const Case c = MakeCase(e, tokens, 2);
    const Packed w(GetParam(), e);
    const std::vector<float> all = RunTokens(GetParam(), w, c, Range(tokens));
    for (const int count : {1, 8, 63}) {
      SCOPED_TRACE(count);
      ExpectSameBits(RunTokens(GetParam(), w, c, Range(count)), PickVectors(all, 96, Range(count)));
    }
  }
}

// Experts that all tokens share may be read before the router has chosen: their pairs and sums stay
// as they are, for one token, and for more than one block takes; 1536 channels go round the ring of
// stages.
TEST_P(MoeExpertsTest, SharedExpertsAreAsChosenOnes) {
  for (const auto& [dtype, hidden] :
       {std::pair(DType::kBF16, 128), {DType::kBF16, 1536}, {DType::kF8E4M3, 128}}) {
    const Experts e(dtype, 6, hidden, 128);
    const Packed w(GetParam(), e);
    for (const int shared : {1, 2}) {
      for (const int tokens : {0, 1, 2, 5, 8, 9}) {
        Case c = MakeCase(Experts(dtype, 6 - shared, hidden, 128), tokens, 2);
        Case all = {.x = c.x, .ids = {}, .weights = {}, .topk = 2 + shared};
        for (int t = 0; t < tokens; ++t) {
          for (int j = 0; j < all.topk; ++j) {
            all.ids.push_back(j < 2 ? c.ids[2 * t + j] : 6 - shared + j - 2);
            all.weights.push_back(j < 2 ? c.weights[2 * t + j] : 1);
          }
        }
        const std::vector<float> chosen = RunTokens(GetParam(), w, all, Range(tokens));
        all.shared = shared;
        ExpectSameBits(RunTokens(GetParam(), w, all, Range(tokens)), chosen);
      }
    }
  }
}

TEST_P(MoeExpertsTest, AllTokensOnOneExpertAndTheSameExpertTwice) {
  const Experts e(DType::kF8E4M3, 4, 128, 128);
  Case c = MakeCase(e, 20, 3);
  std::fill(c.ids.begin(), c.ids.end(), 3);
  const Packed w(GetParam(), e);
  const std::vector<float> all = RunTokens(GetParam(), w, c, Range(20));
  ExpectComposition(GetParam(), all, e, c, Tolerance(GetParam(), DType::kF8E4M3));
  for (const int count : {1, 2, 6}) {
    SCOPED_TRACE(count);
    ExpectSameBits(RunTokens(GetParam(), w, c, Range(count)), PickVectors(all, 128, Range(count)));
  }
}

TEST_P(MoeExpertsTest, NanStaysInItsToken) {
  const Experts e(DType::kF8E4M3, 4, 128, 96);
  Case c = MakeCase(e, 5, 2);
  const Packed w(GetParam(), e);
  const std::vector<float> clean = RunTokens(GetParam(), w, c, Range(5));
  c.x[2 * 128 + 1] = NAN;
  const std::vector<float> out = RunTokens(GetParam(), w, c, Range(5));
  ExpectSameBits(PickVectors(out, 128, {0, 1, 3, 4}), PickVectors(clean, 128, {0, 1, 3, 4}));
  for (const float y : PickVectors(out, 128, {2})) EXPECT_TRUE(std::isnan(y));
}

// Small enough for compute-sanitizer: 40 pairs are sorted by expert, and 4160.
TEST_P(MoeExpertsTest, SortedPairs) {
  const TestBackend& b = GetParam();
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    SCOPED_TRACE(Name(dtype));
    const Experts e(dtype, 4, 128, 96);
    const Case c = MakeCase(e, 20, 2);
    ExpectComposition(b, RunTokens(b, Packed(b, e), c, Range(20)), e, c, Tolerance(b, dtype));
  }
  const Experts e(DType::kBF16, 9, 96, 88);
  const Case c = MakeCase(e, 520, 8);
  ExpectComposition(b, RunTokens(b, Packed(b, e), c, Range(520)), e, c, Tolerance(b, DType::kBF16));
}

}  // namespace
}  // namespace fathom
