// The CPU table at sizes that use every path of its kernels (several blocks, pieces, waves,
// chunks), for every vector width that this machine has.
#include "cpu/simd.h"  // must come before Highway

#include <hwy/targets.h>

#include <cmath>

#include "ops/test_pages.h"
#include "ops/test_weights.h"

namespace fathom {
namespace {

class CpuOpsTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
INSTANTIATE_TEST_SUITE_P(Targets, CpuOpsTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TestBackend Cpu(int threads) {
  return {&CpuOps(Fp8Activations::kQuantized), threads};
}

// The oracle's numbers, and the same bits on 1 to 3 threads.
void ExpectOracle(double tolerance,
                  const std::function<std::vector<float>(const TestBackend&)>& run) {
  const std::vector<float> one = run(Cpu(1));
  ExpectClose(one, run(Oracle()), tolerance);
  ExpectSameBits(run(Cpu(2)), one);
  ExpectSameBits(run(Cpu(3)), one);
}

struct Absorbed {
  int heads;
  std::vector<int> positions;  // all of slot 0
  std::vector<float> q_latent, q_rope;
};

std::vector<float> RunAbsorbed(const TestBackend& b, const TestPages& pages, const Absorbed& c) {
  const auto tokens = static_cast<int64_t>(c.positions.size());
  const TestTokens map(pages, std::vector<int>(c.positions.size(), 0), c.positions,
                       static_cast<int>(tokens));
  const TestTensor out(b.act(), {tokens, c.heads, pages.latent_dim()});
  RunOp(b, &Ops::attend_absorbed,
        {.q_latent = TestTensor(b.act(), {tokens, c.heads, pages.latent_dim()}, c.q_latent),
         .q_rope = TestTensor(b.act(), {tokens, c.heads, pages.rope_dim()}, c.q_rope),
         .tokens = map.map(),
         .pages = pages.pages(),
         .scale = 0.1f,
         .out = out});
  return out.Floats();
}

TEST_P(CpuOpsTest, AbsorbedAttentionOverManyPiecesAndGroups) {
  for (const auto& [latent, rope, heads] :
       {std::tuple{512, 64, 4}, {64, 16, 37}, {36, 6, 16}, {64, 16, 13}}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      TestPages pages(dtype, 1, 40, latent, rope);
      pages.Fill(0, 2500, 1);
      Absorbed c = {heads, {2499, 0, 255, 256, 511, 512, 1300}, {}, {}};
      const auto n = static_cast<int64_t>(c.positions.size()) * heads;
      c.q_latent = Normals(n * latent, 1);
      c.q_rope = Normals(n * rope, 2);
      ExpectOracle(2e-5, [&](const TestBackend& b) { return RunAbsorbed(b, pages, c); });

      // The longest token alone: other waves, the same bits.
      const std::vector<float> all = RunAbsorbed(Cpu(2), pages, c);
      c.positions.resize(1);
      c.q_latent.resize(static_cast<size_t>(heads * latent));
      c.q_rope.resize(static_cast<size_t>(heads * rope));
      ExpectSameBits(RunAbsorbed(Cpu(2), pages, c), {all.begin(), all.begin() + heads * latent});
    }
  }
}

std::vector<float> Expanded(const TestBackend& b, int begin, int end, const std::vector<float>& kv,
                            const std::vector<float>& q) {
  constexpr int kHeads = 3, kNope = 128, kRope = 64, kValue = 72, kContext = 500;
  const int tokens = end - begin;
  const std::vector<float> rope = Normals(kContext * kRope, 5);
  std::vector<int32_t> positions;
  for (int t = begin; t < end; ++t) positions.push_back(t);
  const TestTensor all(b.act(), {kContext, kHeads, kNope + kValue}, kv);
  const TestTensor out(b.act(), {tokens, kHeads, kValue}), lse(DType::kF32, {tokens, kHeads});
  constexpr int kWidth = kHeads * (kNope + kRope);
  const TestTensor queries(b.act(), {tokens, kHeads, kNope + kRope},
                           {q.begin() + begin * kWidth, q.begin() + end * kWidth});
  for (const auto& [from, to] : {std::pair{0, 192}, {192, 500}}) {
    const ContextPiece piece{.begin = from, .count = to - from, .tokens = tokens};
    RunOp(b, &Ops::attend_expanded,
          {.q = queries,
           .positions = Ints({tokens}, positions),
           .kv = all.view().Slice(0, from, to),
           .rope = TestTensor(b.act(), {kContext, kRope}, rope).view().Slice(0, from, to),
           .pieces = {&piece, 1},
           .scale = 0.05f,
           .out = out,
           .lse = lse});
  }
  return out.Floats();
}

TEST_P(CpuOpsTest, ExpandedAttentionOfManyTokens) {
  constexpr int kWidth = 3 * 72;
  const std::vector<float> q = Normals(500 * 3 * 192, 1);
  std::vector<float> kv = Normals(500 * 3 * 200, 2);
  ExpectOracle(1e-5, [&](const TestBackend& b) { return Expanded(b, 0, 500, kv, q); });
  const std::vector<float> all = Expanded(Cpu(2), 0, 500, kv, q);
  for (const auto& [begin, end] : {std::pair{0, 1}, {100, 400}, {191, 193}, {499, 500}}) {
    ExpectSameBits(Expanded(Cpu(1), begin, end, kv, q),
                   {all.begin() + begin * kWidth, all.begin() + end * kWidth});
  }
  // What is NaN at position 300 reaches no token before it.
  std::fill_n(kv.begin() + 300 * 600, 600, NAN);
  const std::vector<float> some = Expanded(Cpu(2), 0, 500, kv, q);
  ExpectSameBits({some.begin(), some.begin() + 300 * kWidth},
                 {all.begin(), all.begin() + 300 * kWidth});
  EXPECT_TRUE(std::isnan(some[300 * kWidth]) && std::isnan(some.back()));
}

// More tokens than a chunk, and for the first expert more than a block of tokens.
TEST_P(CpuOpsTest, ManyTokensOfFewExperts) {
  constexpr int kTokens = 530, kTopk = 2, kExperts = 5, kHidden = 96, kInter = 72;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    std::vector<TestMatrix> matrices;
    std::vector<Parts> gate_up, down;
    for (int e = 0; e < kExperts; ++e) {
      matrices.emplace_back(dtype, kInter, kHidden, 3 * e);
      matrices.emplace_back(dtype, kInter, kHidden, 3 * e + 1);
      matrices.emplace_back(dtype, kHidden, kInter, 3 * e + 2);
    }
    for (int e = 0; e < kExperts; ++e) {
      gate_up.push_back({matrices[3 * e].weight, matrices[3 * e + 1].weight});
      down.push_back({matrices[3 * e + 2].weight});
    }
    const std::vector<float> x = Normals(kTokens * kHidden, 8);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    Rng rng(9);
    for (int t = 0; t < kTokens; ++t) {
      ids.push_back(t % 3 == 0 ? 1 : 0);
      ids.push_back(static_cast<int32_t>(2 + rng.Below(2)));  // expert 4 has no token
      weights.push_back(rng.Uniform());
      weights.push_back(rng.Uniform());
    }
    // A product's last bit may tip a code of FP8.
    ExpectOracle(dtype == DType::kBF16 ? 1e-5 : 2e-3, [&](const TestBackend& b) {
      const auto up = Pack(b, gate_up), down_projection = Pack(b, down);
      const TestTensor out(b.act(), {kTokens, kHidden});
      RunOp(b, &Ops::moe_experts,
            {.x = TestTensor(b.act(), {kTokens, kHidden}, x),
             .ids = Ints({kTokens, kTopk}, ids),
             .weights = TestTensor(DType::kF32, {kTokens, kTopk}, weights),
             .gate_up = up.get(),
             .down = down_projection.get(),
             .live = Live(kTokens),
             .out = out});
      return out.Floats();
    });
  }
}

TEST_P(CpuOpsTest, RoutesManyTokens) {
  constexpr int kTokens = 150, kExperts = 30, kHidden = 333, kTopk = 4;
  const std::vector<float> x = Normals(kTokens * kHidden, 1);
  const std::vector<float> gate = Normals(kExperts * kHidden, 2, 0.05f);
  ExpectOracle(1e-5, [&](const TestBackend& b) {
    const TestTensor ids(DType::kI32, {kTokens, kTopk}), weights(DType::kF32, {kTokens, kTopk});
    RunOp(b, &Ops::route,
          {.x = TestTensor(b.act(), {kTokens, kHidden}, x),
           .gate = TestTensor(DType::kF32, {kExperts, kHidden}, gate),
           .bias = {},
           .scoring = RouterScoring::kSigmoid,
           .selection = RouterSelection::kGreedy,
           .live = Live(kTokens),
           .ids = ids,
           .weights = weights});
    std::vector<float> result = weights.Floats();
    for (const int32_t id : ids.Ints()) result.push_back(static_cast<float>(id));
    return result;
  });
}

// silu is exp: of all sizes, against double.
TEST_P(CpuOpsTest, SiluMulIsAccurate) {
  constexpr int kN = 4003;
  std::vector<float> x;
  for (int i = 0; i < kN; ++i) x.push_back(static_cast<float>(i - kN / 2) * 0.06f);
  x[0] = NAN;
  x[1] = INFINITY;
  x[2] = -INFINITY;  // -inf * 0 is NaN
  x.insert(x.end(), kN, 1.0f);
  const TestTensor out(DType::kF32, {1, kN});
  RunOp(Cpu(1), &Ops::silu_mul,
        {.gate_up = TestTensor(DType::kF32, {1, 2 * kN}, x), .live = Live(1), .out = out});
  const std::vector<float> y = out.Floats();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], INFINITY);
  for (int i = 3; i < kN; ++i) {
    const double silu =
        x[static_cast<size_t>(i)] / (1 + std::exp(-double{x[static_cast<size_t>(i)]}));
    EXPECT_NEAR(y[static_cast<size_t>(i)], silu, 4e-7 * std::abs(silu) + 1e-36)
        << x[static_cast<size_t>(i)];
  }
}

// A vocabulary of which only the front is put in order: the tokens of the reference, which sorts
// it.
TEST(SampleCpuTest, DrawsAsIfAllWereSorted) {
  constexpr int kVocab = 30000, kVectors = 16;
  struct Request {
    float temperature, top_p, min_p;
    int32_t top_k;
  };
  const std::vector<Request> requests = {
      {1, 1, 0, 0},        {0.3f, 1, 0, 0},      {3, 1, 0, 0},         {1, 0.9f, 0, 0},
      {2, 0.99999f, 0, 0}, {1, 1, 0.01f, 0},     {1, 0.95f, 0.05f, 7}, {5, 0.5f, 0, 20000},
      {0.01f, 1, 0, 3},    {1e-6f, 0.9f, 0, 50}, {1, 0, 0, 0},         {1, 1, 1, 0},
      {100, 1, 0, 0},      {0, 1, 0, 0},         {1, 1, 0, kVocab}};
  std::vector<float> logits = Normals(int64_t{kVectors} * kVocab, 3, 3);  // with many ties
  for (int i = 0; i < kVectors * kVocab; i += 7) logits[static_cast<size_t>(i)] = -INFINITY;
  for (const Request& request : requests) {
    std::vector<std::vector<int32_t>> tokens;
    for (const TestBackend& b : {Oracle(), Cpu(1), Cpu(3)}) {
      const auto slots = [&](float value) {
        return TestTensor(DType::kF32, {1}, std::vector<float>{value});
      };
      const TestTensor temperature = slots(request.temperature), top_p = slots(request.top_p),
                       min_p = slots(request.min_p), top_k = Ints({1}, {request.top_k}),
                       seed = Ints({1, 2}, {77, 5});
      SlotState state;
      state.temperature = temperature;
      state.top_p = top_p;
      state.min_p = min_p;
      state.top_k = top_k;
      state.seed = seed;
      const TestTensor out(DType::kI32, {kVectors}), ok(DType::kI32, {kVectors});
      std::vector<int32_t> positions;
      for (int i = 0; i < kVectors; ++i) positions.push_back(i);
      RunOp(b, &Ops::sample,
            {.logits = TestTensor(DType::kF32, {kVectors, kVocab}, logits),
             .index = Ints({kVectors}, positions),
             .token_slot = Ints({kVectors}, std::vector<int32_t>(kVectors, 0)),
             .positions = Ints({kVectors}, positions),
             .slots = state,
             .live = Live(kVectors),
             .tokens = out,
             .ok = ok});
      tokens.push_back(out.Ints());
    }
    EXPECT_EQ(tokens[1], tokens[0]) << request.temperature << " " << request.top_p << " "
                                    << request.min_p << " " << request.top_k;
    EXPECT_EQ(tokens[2], tokens[0]);
  }
}

}  // namespace
}  // namespace fathom
