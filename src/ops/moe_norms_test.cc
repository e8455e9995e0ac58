// The norms that route and moe_experts do beside their own work: the bits of rms_norm.
#include <algorithm>

#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND_AND_MODE(MoeNormsTest);

// What a norm reads and writes, of tokens of which some are live.
struct Normed {
  Normed(const TestBackend& b, int width, int tokens, int live, uint64_t seed = 1)
      : x(b.act(), {tokens, width}, Normals(live * width, seed)),
        residual(DType::kF32, {tokens, width}, Normals(live * width, seed + 1)),
        weight(DType::kF32, {width}, Normals(width, seed + 2)),
        live(Live(live)),
        out(b.act(), {tokens, width}),
        codes(DType::kF8E4M3, {tokens, width}),
        scales(DType::kF32, {(width + 127) / 128, 64}) {}

  RmsNormArgs Args() const {
    return {.x = x,
            .residual = residual,
            .weight = weight,
            .live = live,
            .out = out,
            .quantized = {codes, scales}};
  }
  void ExpectSame(const Normed& other) const {
    ExpectSameBits(out.Floats(), other.out.Floats());
    ExpectSameBits(residual.Floats(), other.residual.Floats());
    const auto *mine = codes.view().As<uint8_t>(), *theirs = other.codes.view().As<uint8_t>();
    EXPECT_TRUE(std::equal(mine, mine + codes.view().elements(), theirs));
    ExpectSameBits(scales.Floats(), other.scales.Floats());
  }

  TestTensor x, residual, weight, live, out, codes, scales;
};

// Room for tokens, and how many there are: few are normed by the router itself.
constexpr std::pair<int, int> kTokens[] = {{1, 1}, {1, 0}, {2, 2},  {2, 1},
                                           {3, 2}, {9, 9}, {17, 13}};

TEST_P(MoeNormsTest, OfARouter) {
  const TestBackend& b = GetParam();
  for (const auto& [width, experts] : {std::pair{2048, 64}, {512, 10}, {1024, 256}, {7168, 64}}) {
    for (const DType type : {DType::kF32, b.act()}) {
      const TestTensor gate(type, {experts, width}, Normals(experts * width, 9));
      for (const auto& [tokens, live] : kTokens) {
        SCOPED_TRACE(testing::Message()
                     << width << " channels, " << live << " tokens of " << tokens);
        const Normed apart(b, width, tokens, live), beside(b, width, tokens, live);
        std::vector<TestTensor> ids, weights;
        for (const Normed* normed : {&apart, &beside}) {
          ids.emplace_back(DType::kI32, std::initializer_list<int64_t>{tokens, 6});
          weights.emplace_back(DType::kF32, std::initializer_list<int64_t>{tokens, 6});
          RouteArgs args = {.x = normed->out,
                            .gate = gate,
                            .scoring = RouterScoring::kSoftmax,
                            .selection = RouterSelection::kGreedy,
                            .live = normed->live,
                            .ids = ids.back(),
                            .weights = weights.back()};
          if (normed == &apart) {
            RunOp(b, &Ops::rms_norm, normed->Args());
          } else {
            args.norm = normed->Args();
          }
          RunOp(b, &Ops::route, args);
        }
        apart.ExpectSame(beside);
        EXPECT_TRUE(beside.out.PoisonedFrom(live));
        EXPECT_EQ(ids[0].Ints(), ids[1].Ints());
        ExpectSameBits(weights[0].Floats(), weights[1].Floats());
      }
    }
  }
}

TEST_P(MoeNormsTest, OfTheExpertsSum) {
  const TestBackend& b = GetParam();
  constexpr int kExperts = 4, kInter = 128;
  for (const int width : {2048, 256, 7168}) {
    for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
      std::vector<TestMatrix> matrices;
      std::vector<Parts> gate_up, down;
      matrices.reserve(3 * kExperts);
      for (int e = 0; e < kExperts; ++e) {
        const uint64_t seed = 20 + 3 * e;
        matrices.emplace_back(type, kInter, width, seed);
        matrices.emplace_back(type, kInter, width, seed + 1);
        matrices.emplace_back(type, width, kInter, seed + 2);
        gate_up.push_back({matrices[3 * e].weight, matrices[3 * e + 1].weight});
        down.push_back({matrices[3 * e + 2].weight});
      }
      const auto first = Pack(b, gate_up), second = Pack(b, down);
      for (const auto& [tokens, live] : kTokens) {
        SCOPED_TRACE(testing::Message()
                     << width << " channels, " << live << " tokens of " << tokens);
        const TestTensor x(b.act(), {tokens, width}, Normals(live * width, 7));
        std::vector<int32_t> of_tokens;
        for (int i = 0; i < live; ++i) {
          for (const int e : {i, i + 1, i + 3}) of_tokens.push_back(e % kExperts);
        }
        const TestTensor ids = Ints({tokens, 3}, of_tokens);
        const TestTensor weights(DType::kF32, {tokens, 3}, Normals(live * 3, 8));
        const Normed apart(b, width, tokens, live), beside(b, width, tokens, live);
        for (const Normed* normed : {&apart, &beside}) {
          MoeExpertsArgs args = {.x = x,
                                 .ids = ids,
                                 .weights = weights,
                                 .gate_up = first.get(),
                                 .down = second.get(),
                                 .live = normed->live,
                                 .out = normed->x};
          if (normed == &beside) args.norm = normed->Args();
          RunOp(b, &Ops::moe_experts, args);
          if (normed == &apart) RunOp(b, &Ops::rms_norm, normed->Args());
        }
        apart.ExpectSame(beside);
        EXPECT_TRUE(beside.out.PoisonedFrom(live));
      }
    }
  }
}

}  // namespace
}  // namespace fathom
