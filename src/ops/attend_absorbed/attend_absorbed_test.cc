#include <algorithm>
#include <cmath>

#include "ops/test_pages.h"
#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND(AttendAbsorbedTest);

constexpr double kTolerance = 5e-6;

struct Case {
  const TestPages* pages;
  int heads;
  std::vector<int> slots, positions;
  std::vector<float> q_latent, q_rope;  // [tokens, heads, latent], [tokens, heads, rope]
  float scale;
  int64_t step_rows = 0;

  int64_t width() const { return int64_t{heads} * pages->latent_dim(); }
  int tokens() const { return static_cast<int>(slots.size()); }
};

Case MakeCase(const TestPages& pages, int heads, const std::vector<int>& slots,
              const std::vector<int>& positions) {
  const auto n = static_cast<int64_t>(slots.size()) * heads;
  return {&pages,
          heads,
          slots,
          positions,
          Normals(n * pages.latent_dim(), 1),
          Normals(n * pages.rope_dim(), 2),
          1.0f / std::sqrt(static_cast<float>(pages.latent_dim()))};
}

// Runs `tokens` of the case with room for two more, whose queries are NaN; q_rope lies behind 8
// other channels.
std::vector<float> RunTokens(const TestBackend& b, const Case& c, const std::vector<int>& tokens) {
  const int live = static_cast<int>(tokens.size()), rope = c.pages->rope_dim();
  std::vector<int> slots, positions;
  std::vector<float> q_latent = PickVectors(c.q_latent, c.width(), tokens);
  q_latent.resize((live + 2) * c.width(), NAN);
  std::vector<float> q_rope((live + 2) * c.heads * (rope + 8), NAN);
  for (int i = 0; i < live; ++i) {
    slots.push_back(c.slots[tokens[i]]);
    positions.push_back(c.positions[tokens[i]]);
    for (int h = 0; h < c.heads; ++h) {
      std::copy_n(&c.q_rope[(tokens[i] * c.heads + h) * rope], rope,
                  &q_rope[(i * c.heads + h) * (rope + 8) + 8]);
    }
  }
  const TestTokens map(*c.pages, slots, positions, live + 2);
  const TestTensor wide(b.act(), {live + 2, c.heads, rope + 8}, q_rope);
  TestTensor out(b.act(), {live + 2, c.heads, c.pages->latent_dim()});
  RunOp(b, &Ops::attend_absorbed,
        {.q_latent = TestTensor(b.act(), {live + 2, c.heads, c.pages->latent_dim()}, q_latent),
         .q_rope = wide.view().Slice(2, 8, rope + 8),
         .tokens = map.map(),
         .pages = c.pages->pages(),
         .scale = c.scale,
         .out = out,
         .step_rows = c.step_rows});
  EXPECT_TRUE(out.PoisonedFrom(live));
  std::vector<float> result = out.Floats();
  result.resize(live * c.width());
  return result;
}

// The formula, in double.
std::vector<float> Formula(const Case& c) {
  const int latent = c.pages->latent_dim(), rope = c.pages->rope_dim();
  std::vector<float> out;
  for (int i = 0; i < c.tokens() * c.heads; ++i) {
    const int t = i / c.heads;
    std::vector<double> scores, sum(latent);
    for (int j = 0; j <= c.positions[t]; ++j) {
      double score = 0;
      const std::vector<float> k = c.pages->Latent(c.slots[t], j), r = c.pages->Rope(c.slots[t], j);
      for (int d = 0; d < latent; ++d) score += double{c.q_latent[i * latent + d]} * k[d];
      for (int d = 0; d < rope; ++d) score += double{c.q_rope[i * rope + d]} * r[d];
      scores.push_back(score * c.scale);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double norm = 0;
    for (int j = 0; j <= c.positions[t]; ++j) {
      const double weight = std::exp(scores[j] - max);
      const std::vector<float> k = c.pages->Latent(c.slots[t], j);
      for (int d = 0; d < latent; ++d) sum[d] += weight * k[d];
      norm += weight;
    }
    for (int d = 0; d < latent; ++d) out.push_back(static_cast<float>(sum[d] / norm));
  }
  return out;
}

// Three slots of different lengths.
TestPages MakePages(DType dtype, int latent, int rope, uint64_t seed = 1) {
  TestPages pages(dtype, 3, 5, latent, rope, seed);
  pages.Fill(0, 320, 1);
  pages.Fill(1, 129, 2);
  pages.Fill(2, 1, 3);
  return pages;
}
const std::vector<int> kSlots = {0, 0, 0, 0, 0, 1, 1, 2, 0, 1};
const std::vector<int> kPositions = {62, 63, 64, 65, 319, 127, 128, 0, 0, 1};

TEST_P(AttendAbsorbedTest, IsTheFormula) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [latent, rope, heads] : {std::tuple{512, 64, 1},
                                              {512, 64, 4},
                                              {512, 64, 20},
                                              {512, 64, 72},
                                              {32, 16, 16},
                                              {40, 6, 3}}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << " " << latent << " " << heads);
      const TestPages pages = MakePages(dtype, latent, rope);
      const Case c = MakeCase(pages, heads, kSlots, kPositions);
      const auto run = [&](const TestBackend& b) { return RunTokens(b, c, Range(c.tokens())); };
      ExpectClose(run(GetParam()), Formula(c), kTolerance + Rounding(GetParam()));
      ExpectAsOracle(GetParam(), kTolerance + Rounding(GetParam()), run);
    }
  }
}

TEST_P(AttendAbsorbedTest, SharpAndFlatScores) {
  const TestPages pages = MakePages(DType::kF32, 32, 16);
  Case c = MakeCase(pages, 4, kSlots, kPositions);
  for (const float scale : {0.0f, 1e-6f, 30.0f, 3000.0f}) {
    SCOPED_TRACE(scale);
    c.scale = scale;
    // Scores of 1e4 carry an error of 1e-3 in fp32, and so does a weight.
    ExpectClose(RunTokens(GetParam(), c, Range(c.tokens())), Formula(c),
                (scale > 1 ? 2e-3 : kTolerance) + Rounding(GetParam()));
  }
}

// With the published models' sizes too, for which there are kernels of their own.
TEST_P(AttendAbsorbedTest, ATokenDoesNotDependOnOthersNorOnTheLengthOfItsRow) {
  for (const auto& [latent, rope, dtype] :
       {std::tuple{64, 16, DType::kBF16}, {512, 64, DType::kBF16}, {512, 64, DType::kF8E4M3}}) {
    SCOPED_TRACE(testing::Message() << latent << " " << Name(dtype));
    const TestPages pages = MakePages(dtype, latent, rope);
    // The last 33 tokens of slot 0 as one row, over a page border; then others.
    std::vector<int> slots(33, 0), positions;
    for (int t = 0; t < 33; ++t) positions.push_back(240 + t);
    slots.insert(slots.end(), kSlots.begin(), kSlots.end());
    positions.insert(positions.end(), kPositions.begin(), kPositions.end());
    const Case c = MakeCase(pages, 4, slots, positions);
    ExpectTokenInvariance(c.tokens(), c.width(), [&](const std::vector<int>& tokens) {
      return RunTokens(GetParam(), c, tokens);
    });
    for (int length = 1; length <= 33; length += 2) {
      const std::vector<int> row = Range(length);
      ExpectSameBits(RunTokens(GetParam(), c, row),
                     PickVectors(RunTokens(GetParam(), c, Range(33)), c.width(), row));
    }
    EXPECT_TRUE(RunTokens(GetParam(), c, {}).empty());
  }
}

// A kernel may compute a row's odd token beside the next row's first: a NaN there stays there.
TEST_P(AttendAbsorbedTest, NanStaysInItsRow) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    SCOPED_TRACE(Name(dtype));
    const TestPages pages = MakePages(dtype, 512, 64);
    Case c = MakeCase(pages, 4, {0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
                      {317, 318, 319, 124, 125, 126, 127, 128, 60, 61, 62, 63, 64});
    const std::vector<float> clean = RunTokens(GetParam(), c, Range(c.tokens()));
    std::fill_n(&c.q_latent[3 * c.width()], c.width(), NAN);
    const std::vector<float> out = RunTokens(GetParam(), c, Range(c.tokens()));
    const std::vector<int> others = {0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    ExpectSameBits(PickVectors(out, c.width(), others), PickVectors(clean, c.width(), others));
    for (const float y : PickVectors(out, c.width(), {3})) EXPECT_TRUE(std::isnan(y));
  }
}

// A kernel may take a long step in passes: contexts of one and of several parts on either side of
// each border, and one of them alone.
TEST_P(AttendAbsorbedTest, LongStepsHaveTheBitsOfShortOnes) {
  TestPages pages(DType::kBF16, 2, 34, 512, 64, 1);
  pages.Fill(0, 2120, 1);
  pages.Fill(1, 20, 2);
  std::vector<int> slots, positions;
  for (int t = 0; t < 530; ++t) {
    const bool near_border = t % 256 < 2 || t % 256 > 253;
    slots.push_back(near_border ? 0 : 1);
    positions.push_back(near_border ? 1020 + 2 * t : t % 20);
  }
  const Case c = MakeCase(pages, 20, slots, positions);
  const std::vector<float> all = RunTokens(GetParam(), c, Range(c.tokens()));
  const std::vector<int> some = {0, 1, 2, 254, 255, 256, 257, 258, 510, 511, 512, 513, 529};
  ExpectSameBits(PickVectors(all, c.width(), some), RunTokens(GetParam(), c, some));
  ExpectAsOracle(GetParam(), kTolerance + Rounding(GetParam()),
                 [&](const TestBackend& b) { return RunTokens(b, c, some); });
}

// A kernel may share few tokens out otherwise than many: contexts of several parts and one that
// ends early, alone, in threes and together.
TEST_P(AttendAbsorbedTest, FewTokensHaveTheBitsOfMany) {
  TestPages pages(DType::kBF16, 3, 42, 512, 64, 1);
  pages.Fill(0, 1300, 1);
  pages.Fill(1, 1025, 2);
  pages.Fill(2, 70, 3);
  const std::vector<int> slots = {0, 0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  const std::vector<int> positions = {1297, 1298, 1299, 1023, 1024, 68, 69, 600, 511, 0,
                                      64,   65,   63,   700,  127,  1,  3,  128, 2};
  for (const int heads : {20, 72}) {
    SCOPED_TRACE(heads);
    const Case c = MakeCase(pages, heads, slots, positions);
    const std::vector<float> all = RunTokens(GetParam(), c, Range(c.tokens()));
    for (const std::vector<int>& few : {std::vector{0}, {4}, {5}, {10}, {0, 1, 2}, {3, 4, 6}}) {
      ExpectSameBits(PickVectors(all, c.width(), few), RunTokens(GetParam(), c, few));
    }
  }
}

// As many parts as suit the step: rows of one token and of several, whose contexts end in every
// part; alone, and in company.
TEST_P(AttendAbsorbedTest, WithoutBatchInvariance) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    TestPages pages(dtype, 3, 42, 512, 64, 1);
    pages.Fill(0, 1300, 1);
    pages.Fill(1, 1025, 2);
    pages.Fill(2, 70, 3);
    for (const int heads : {16, 72}) {
      Case c = MakeCase(pages, heads, {0, 0, 0, 0, 1, 1, 1, 2, 2, 2},
                        {1296, 1297, 1298, 1299, 1022, 1023, 1024, 62, 63, 64});
      for (const int tokens : {10, 7, 1}) {
        SCOPED_TRACE(testing::Message() << Name(dtype) << " " << heads << " heads, " << tokens);
        c.step_rows = (tokens + 3) / 4;
        const auto run = [&](const TestBackend& b) { return RunTokens(b, c, Range(tokens)); };
        // Of a long context's result the weights' rounding is a part as large as its own.
        ExpectAsOracle(GetParam(), kTolerance + 1.25 * Rounding(GetParam()), run);
        ExpectSameBits(run(GetParam()), run(GetParam()));
      }
    }
  }
}

TEST_P(AttendAbsorbedTest, PlacesOfPagesDoNotMatter) {
  const TestPages pages = MakePages(DType::kBF16, 64, 16),
                  moved = MakePages(DType::kBF16, 64, 16, 9);
  const Case c = MakeCase(pages, 2, kSlots, kPositions);
  Case d = c;
  d.pages = &moved;
  ASSERT_NE(pages.table().Ints(), moved.table().Ints());
  ExpectSameBits(RunTokens(GetParam(), d, Range(d.tokens())),
                 RunTokens(GetParam(), c, Range(c.tokens())));
}

// One position: the output is its latent.
TEST_P(AttendAbsorbedTest, FP8OfAnyMagnitude) {
  for (const float magnitude : {1e-9f, 1e-3f, 1e6f, 1e25f}) {
    for (const int heads : {2, 20}) {
      SCOPED_TRACE(testing::Message() << magnitude << " " << heads);
      TestPages pages(DType::kF8E4M3, 1, 1, 512, 64);
      std::vector<float> x = Normals(512, 1);
      for (float& value : x) value *= magnitude;
      pages.Set(0, 0, x, std::vector<float>(64, 0));
      Case c = MakeCase(pages, heads, {0}, {0});
      std::fill(c.q_latent.begin(), c.q_latent.end(), 0.0f);
      std::vector<float> latents;
      for (int h = 0; h < heads; ++h) {
        const std::vector<float> latent = pages.Latent(0, 0);
        latents.insert(latents.end(), latent.begin(), latent.end());
      }
      ASSERT_NE(latents[0], 0);
      ExpectClose(RunTokens(GetParam(), c, {0}), latents, kTolerance);
    }
  }
}

TEST_P(AttendAbsorbedTest, NanStaysInItsHead) {
  const TestPages pages = MakePages(DType::kF32, 32, 16);
  Case c = MakeCase(pages, 2, {0, 0, 1}, {100, 101, 70});
  const std::vector<float> clean = RunTokens(GetParam(), c, Range(3));
  c.q_latent[(1 * 2 + 1) * 32 + 3] = NAN;
  const std::vector<float> out = RunTokens(GetParam(), c, Range(3));
  ExpectSameBits(PickVectors(out, 32, {0, 1, 2, 4, 5}), PickVectors(clean, 32, {0, 1, 2, 4, 5}));
  for (const float y : PickVectors(out, 32, {3})) EXPECT_TRUE(std::isnan(y));
}

// What W_UV and o make of attention to `tokens` of a case, in a step that has room for `room`.
struct ProductsRun {
  const PackedWeight* w_uv;  // `heads` matrices [128, latent]
  const PackedWeight* o;     // [64, heads * 128]
  int room;
  bool together, copied;  // attention multiplies by W_UV; W_UV quantises for o
};
std::vector<float> RunProducts(const TestBackend& b, const Case& c, const std::vector<int>& tokens,
                               const ProductsRun& run) {
  const int live = static_cast<int>(tokens.size()), room = run.room;
  const int latents = c.pages->latent_dim(), rope = c.pages->rope_dim(), width = c.heads * 128;
  std::vector<int> slots, positions;
  for (const int t : tokens) slots.push_back(c.slots[t]), positions.push_back(c.positions[t]);
  const TestTokens map(*c.pages, slots, positions, room);
  const TestTensor q_latent(b.act(), {room, c.heads, latents},
                            PickVectors(c.q_latent, c.width(), tokens));
  const TestTensor q_rope(b.act(), {room, c.heads, rope},
                          PickVectors(c.q_rope, c.heads * rope, tokens));
  const TestTensor latent(b.act(), {room, c.heads, latents});
  const TestTensor out(b.act(), {room, c.heads, 128}), y(b.act(), {room, 64});
  const TestTensor codes(DType::kF8E4M3, {room, width}), scales(DType::kF32, {c.heads, 32});
  QuantizedCopy copy;
  if (run.copied && run.o->quantize_activations) copy = {codes, scales};
  const HeadLinearArgs product = {
      .x = latent, .weight = run.w_uv, .live = map.live, .out = out, .quantized = copy};
  const AttendAbsorbedArgs attend = {.q_latent = q_latent,
                                     .q_rope = q_rope,
                                     .tokens = map.map(),
                                     .pages = c.pages->pages(),
                                     .scale = c.scale,
                                     .out = latent,
                                     .values = run.together ? product : HeadLinearArgs()};
  const LinearArgs last = {.x = out.view().Reshaped({room, width}),
                           .x_quantized = copy,
                           .weight = run.o,
                           .live = map.live,
                           .out = y};
  const size_t bytes = std::max({b.ops->attend_absorbed.Workspace(b.stream(), attend),
                                 b.ops->head_linear.Workspace(b.stream(), product),
                                 b.ops->linear.Workspace(b.stream(), last)});
  const TestTensor workspace(DType::kU8, {static_cast<int64_t>(bytes)});
  OpContext context = {b.stream(), {workspace.view().As<std::byte>(), bytes}};
  b.ops->attend_absorbed(context, attend);
  if (!run.together) b.ops->head_linear(context, product);
  b.ops->linear(context, last);
  b.stream().Synchronize();
  EXPECT_TRUE(latent.PoisonedFrom(live) && out.PoisonedFrom(live) && y.PoisonedFrom(live));
  std::vector<float> all;
  for (const TestTensor* each : {&out, &y}) {
    const std::vector<float> result = each->Floats();
    all.insert(all.end(), result.begin(), result.begin() + live * each->view().stride(0));
  }
  return all;
}

// Neither whether attention multiplies by W_UV as well changes a bit, nor what W_UV quantises for
// o. Contexts of one part and of many.
TEST_P(AttendAbsorbedTest, ProductsBehindIt) {
  const TestBackend& b = GetParam();
  const std::vector<int> slots = {0, 1, 2, 2, 2, 2, 0, 0, 1, 1, 1};
  const std::vector<int> positions = {8999, 5, 1023, 1024, 1025, 1026, 127, 128, 511, 1600, 700};
  for (const auto& [dtype, heads] : {std::pair{DType::kBF16, 16},
                                     {DType::kF8E4M3, 16},
                                     {DType::kBF16, 3},
                                     {DType::kF8E4M3, 3},
                                     {DType::kBF16, 20}}) {
    TestPages pages(dtype, 3, 142, 512, 64);
    for (int slot = 0; slot < 3; ++slot) pages.Fill(slot, slot == 0 ? 9000 : 1800, slot + 1);
    const TestMatrix m(DType::kBF16, heads * 128, 512, 9);
    std::vector<Parts> matrices;
    for (int h = 0; h < heads; ++h) {
      matrices.push_back({SliceOutputs(m.weight, h * 128, (h + 1) * 128)});
    }
    const auto w_uv = Pack(b, matrices, {.exact_activations = true});
    const TestMatrix n(DType::kF8E4M3, 64, heads * 128, 8);
    const auto o = Pack(b, {{n.weight}});
    const Case c = MakeCase(pages, heads, slots, positions);
    for (const auto& [first, live, room] : {std::tuple{0, 0, 1},
                                            {0, 1, 1},
                                            {1, 1, 1},
                                            {2, 1, 1},
                                            {0, 1, 3},
                                            {3, 2, 4},
                                            {0, 6, 8},
                                            {0, 11, 13}}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << ", " << heads << " heads, " << live
                                      << " tokens of " << room << " from " << first);
      std::vector<int> tokens = Range(first + live);
      tokens.erase(tokens.begin(), tokens.begin() + first);
      const auto run = [&, room = room](bool together, bool copied) {
        return RunProducts(b, c, tokens, {w_uv.get(), o.get(), room, together, copied});
      };
      const std::vector<float> apart = run(false, false);
      ExpectSameBits(run(false, true), apart);
      for (const bool copied : {false, true}) ExpectSameBits(run(true, copied), apart);
    }
  }
}

}  // namespace
}  // namespace fathom
