#include <algorithm>
#include <cmath>

#include "ops/test_pages.h"
#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND(AttendExpandedTest);

constexpr double kTolerance = 5e-6;

struct Case {
  int heads, nope, rope_dim, vdim, context;
  std::vector<int> positions;
  std::vector<float> q, kv, rope;
  float scale;

  int64_t q_width() const { return int64_t{heads} * (nope + rope_dim); }
  int64_t width() const { return int64_t{heads} * vdim; }
  int tokens() const { return static_cast<int>(positions.size()); }
};

Case MakeCase(int heads, int nope, int rope, int vdim, int context,
              const std::vector<int>& positions) {
  const auto tokens = static_cast<int64_t>(positions.size());
  return {.heads = heads,
          .nope = nope,
          .rope_dim = rope,
          .vdim = vdim,
          .context = context,
          .positions = positions,
          .q = Normals(tokens * heads * (nope + rope), 1),
          .kv = Normals(int64_t{context} * heads * (nope + vdim), 2),
          .rope = Normals(int64_t{context} * rope, 3),
          .scale = 1.0f / std::sqrt(static_cast<float>(nope + rope))};
}

struct Output {
  std::vector<float> out, lse;
};

// Runs `tokens` of the case; `borders` are the context's chunks, the first 0 and the last its end.
Output RunTokens(const TestBackend& b, const Case& c, const std::vector<int>& tokens,
                 const std::vector<int>& borders) {
  const int64_t n = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> positions;
  for (int t : tokens) positions.push_back(c.positions[t]);
  const TestTensor q(b.act(), {n, c.heads, c.nope + c.rope_dim},
                     PickVectors(c.q, c.q_width(), tokens));
  const TestTensor map = Ints({n}, positions);
  const TestTensor kv(b.act(), {c.context, c.heads, c.nope + c.vdim}, c.kv);
  const TestTensor rope(b.act(), {c.context, c.rope_dim}, c.rope);
  TestTensor out(b.act(), {n, c.heads, c.vdim}), lse(DType::kF32, {n, c.heads});
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const ContextPiece piece{.begin = borders[i],
                             .count = borders[i + 1] - borders[i],
                             .tokens = static_cast<int32_t>(n)};
    RunOp(b, &Ops::attend_expanded,
          {.q = q,
           .positions = map,
           .kv = kv.view().Slice(0, borders[i], borders[i + 1]),
           .rope = rope.view().Slice(0, borders[i], borders[i + 1]),
           .pieces = {&piece, 1},
           .scale = c.scale,
           .out = out,
           .lse = lse});
  }
  return {out.Floats(), lse.Floats()};
}

// All tokens of some cases of equal heads as rows of one launch after another; their contexts are
// cut at multiples of `chunk`. A token without row comes before each row.
std::vector<Output> RunRows(const TestBackend& b, const std::vector<Case>& rows, int chunk) {
  const Case& shape = rows[0];
  std::vector<float> q, kv, rope;
  std::vector<int32_t> positions;
  for (const Case& row : rows) {
    q.insert(q.end(), shape.q_width(), NAN);
    q.insert(q.end(), row.q.begin(), row.q.end());
    positions.push_back(1000);
    positions.insert(positions.end(), row.positions.begin(), row.positions.end());
  }
  const auto tokens = static_cast<int64_t>(positions.size());
  TestTensor out(b.act(), {tokens, shape.heads, shape.vdim});
  TestTensor lse(DType::kF32, {tokens, shape.heads});
  for (int begin = 0;; begin += chunk) {
    std::vector<ContextPiece> pieces;
    int32_t at = 0, token = 0;
    for (const Case& row : rows) {
      const int count = std::min(chunk, row.context - begin);
      ++token;
      if (count > 0) {
        pieces.push_back({.begin = begin,
                          .count = count,
                          .at = at,
                          .token_begin = token,
                          .tokens = row.tokens()});
        at += count;
        const auto part = [&](std::vector<float>& to, const std::vector<float>& from, int width) {
          to.insert(to.end(), from.begin() + begin * width, from.begin() + (begin + count) * width);
        };
        part(kv, row.kv, shape.heads * (shape.nope + shape.vdim));
        part(rope, row.rope, shape.rope_dim);
      }
      token += row.tokens();
    }
    if (pieces.empty()) break;
    RunOp(b, &Ops::attend_expanded,
          {.q = TestTensor(b.act(), {tokens, shape.heads, shape.nope + shape.rope_dim}, q),
           .positions = Ints({tokens}, positions),
           .kv = TestTensor(b.act(), {at, shape.heads, shape.nope + shape.vdim}, kv),
           .rope = TestTensor(b.act(), {at, shape.rope_dim}, rope),
           .pieces = pieces,
           .scale = shape.scale,
           .out = out,
           .lse = lse});
    kv.clear();
    rope.clear();
  }
  std::vector<Output> outputs;
  int token = 0;
  for (const Case& row : rows) {
    std::vector<int> own = Range(row.tokens());
    for (int& t : own) t += token + 1;
    outputs.push_back({PickVectors(out.Floats(), shape.width(), own),
                       PickVectors(lse.Floats(), shape.heads, own)});
    token += row.tokens() + 1;
  }
  return outputs;
}

// The formula, in double.
Output Formula(const Case& c) {
  Output output;
  for (int i = 0; i < c.tokens() * c.heads; ++i) {
    const int t = i / c.heads, h = i % c.heads;
    const float* q = &c.q[i * (c.nope + c.rope_dim)];
    std::vector<double> scores, sum(c.vdim);
    for (int j = 0; j <= c.positions[t]; ++j) {
      const float* k = &c.kv[(j * c.heads + h) * (c.nope + c.vdim)];
      double score = 0;
      for (int d = 0; d < c.nope; ++d) score += double{q[d]} * k[d];
      for (int d = 0; d < c.rope_dim; ++d)
        score += double{q[c.nope + d]} * c.rope[j * c.rope_dim + d];
      scores.push_back(score * c.scale);
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double norm = 0;
    for (int j = 0; j <= c.positions[t]; ++j) {
      const double weight = std::exp(scores[j] - max);
      const float* v = &c.kv[(j * c.heads + h) * (c.nope + c.vdim) + c.nope];
      for (int d = 0; d < c.vdim; ++d) sum[d] += weight * v[d];
      norm += weight;
    }
    for (int d = 0; d < c.vdim; ++d) output.out.push_back(static_cast<float>(sum[d] / norm));
    output.lse.push_back(static_cast<float>(max + std::log(norm)));
  }
  return output;
}

TEST_P(AttendExpandedTest, IsTheFormulaHoweverTheContextIsCut) {
  const std::vector<int> positions = {0, 1, 62, 63, 64, 65, 127, 128, 199};
  for (const auto& [heads, nope, rope, vdim] :
       {std::tuple{1, 128, 64, 128}, {4, 128, 64, 128}, {16, 16, 8, 24}, {3, 10, 6, 7}}) {
    const Case c = MakeCase(heads, nope, rope, vdim, 200, positions);
    const Output expected = Formula(c);
    for (const std::vector<int>& borders :
         {std::vector<int>{0, 200}, {0, 64, 128, 192, 200}, {0, 1, 2, 65, 199, 200}}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, chunks: " << borders.size() - 1);
      const auto run = [&](const TestBackend& b) {
        return RunTokens(b, c, Range(c.tokens()), borders);
      };
      // With activations in BF16 each merge rounds once more.
      const double tolerance = kTolerance + Rounding(GetParam()) * borders.size() / 2;
      const double of_lse = kTolerance + Summing(GetParam());
      ExpectClose(run(GetParam()).out, expected.out, tolerance);
      ExpectClose(run(GetParam()).lse, expected.lse, of_lse);
      ExpectAsOracle(GetParam(), tolerance, [&](const TestBackend& b) { return run(b).out; });
      ExpectAsOracle(GetParam(), of_lse, [&](const TestBackend& b) { return run(b).lse; });
    }
  }
}

// Of more tokens than a backend takes at once, each with its own position.
TEST_P(AttendExpandedTest, LongRowsAreTheFormula) {
  std::vector<int> positions;
  for (int t = 0; t < 300; ++t) positions.push_back(20 + t);
  for (const Case& c :
       {MakeCase(2, 16, 8, 24, 320, positions), MakeCase(2, 128, 64, 128, 320, positions)}) {
    const Output expected = Formula(c), got = RunTokens(GetParam(), c, Range(300), {0, 320});
    // In BF16 shares of 300 keys are rounded too, and turn some of the sums' rounding.
    ExpectClose(got.out, expected.out, kTolerance + 1.25 * Rounding(GetParam()));
    ExpectClose(got.lse, expected.lse, kTolerance + Summing(GetParam()));
  }
}

TEST_P(AttendExpandedTest, ATokenDoesNotDependOnTheSplitOfTheQueries) {
  std::vector<int> positions;
  for (int t = 0; t < 70; ++t) positions.push_back(60 + t);
  // The second with the published models' heads, for which there are kernels of their own.
  for (const Case& c :
       {MakeCase(2, 24, 8, 16, 130, positions), MakeCase(2, 128, 64, 128, 130, positions)}) {
    for (const std::vector<int>& borders : {std::vector<int>{0, 130}, {0, 64, 128, 130}}) {
      ExpectTokenInvariance(70, c.width(), [&](const std::vector<int>& tokens) {
        return RunTokens(GetParam(), c, tokens, borders).out;
      });
      const Output all = RunTokens(GetParam(), c, Range(70), borders);
      const std::vector<int> tail = {64, 65, 66, 67, 68, 69};
      ExpectSameBits(RunTokens(GetParam(), c, tail, borders).lse, PickVectors(all.lse, 2, tail));
    }
    EXPECT_TRUE(RunTokens(GetParam(), c, {}, {0, 130}).out.empty());
  }
}

TEST_P(AttendExpandedTest, RowsOfALaunchDoNotShowInEachOther) {
  const auto positions = [](int begin, int end) {
    std::vector<int> all;
    for (int i = begin; i < end; ++i) all.push_back(i);
    return all;
  };
  for (const auto& [nope, rope, vdim] : {std::tuple{128, 64, 128}, {24, 8, 16}}) {
    std::vector<Case> rows;
    for (const auto& [begin, end] : {std::pair{60, 260}, {4, 5}, {0, 130}, {7, 7}, {129, 140}}) {
      rows.push_back(MakeCase(2, nope, rope, vdim, end, positions(begin, end)));
    }
    // What others' keys are is not to be seen either.
    std::fill(rows[1].kv.begin(), rows[1].kv.end(), NAN);
    std::fill(rows[1].rope.begin(), rows[1].rope.end(), NAN);
    for (const int chunk : {512, 128}) {
      const std::vector<Output> together = RunRows(GetParam(), rows, chunk);
      for (const size_t i : {0, 2, 3, 4}) {
        std::vector<int> cut;
        for (int begin = 0; begin < rows[i].context; begin += chunk) cut.push_back(begin);
        cut.push_back(rows[i].context);
        const Output alone = RunTokens(GetParam(), rows[i], Range(rows[i].tokens()), cut);
        ExpectSameBits(together[i].out, alone.out);
        ExpectSameBits(together[i].lse, alone.lse);
      }
      for (const float x : together[1].out) EXPECT_TRUE(std::isnan(x));
    }
  }
}

TEST_P(AttendExpandedTest, KeysAfterATokenAreNotReadAndHiddenChunksChangeNothing) {
  Case c = MakeCase(2, 24, 8, 16, 128, {63, 10, 0});
  const Output clean = RunTokens(GetParam(), c, Range(3), {0, 64});
  // What lies behind position 63 is invisible, NaN or not.
  std::fill(c.kv.begin() + 64 * 2 * 40, c.kv.end(), NAN);
  std::fill(c.rope.begin() + 64 * 8, c.rope.end(), NAN);
  for (const std::vector<int>& borders : {std::vector<int>{0, 128}, {0, 64, 128}}) {
    const Output out = RunTokens(GetParam(), c, Range(3), borders);
    ExpectSameBits(out.out, clean.out);
    ExpectSameBits(out.lse, clean.lse);
  }
}

TEST_P(AttendExpandedTest, SharpScores) {
  Case c = MakeCase(2, 24, 8, 16, 128, {127, 64, 3});
  c.scale = 1000;
  ExpectClose(RunTokens(GetParam(), c, Range(3), {0, 64, 128}).out, Formula(c).out,
              1e-3 + Rounding(GetParam()) * 2);
}

TEST_P(AttendExpandedTest, NanStaysInItsHead) {
  Case c = MakeCase(2, 24, 8, 16, 128, {127, 100, 3});
  const std::vector<float> clean = RunTokens(GetParam(), c, Range(3), {0, 64, 128}).out;
  c.q[(1 * 2 + 1) * 32 + 3] = NAN;
  const std::vector<float> out = RunTokens(GetParam(), c, Range(3), {0, 64, 128}).out;
  ExpectSameBits(PickVectors(out, 16, {0, 1, 2, 4, 5}), PickVectors(clean, 16, {0, 1, 2, 4, 5}));
  for (const float y : PickVectors(out, 16, {3})) EXPECT_TRUE(std::isnan(y));
}

// The two forms of MLA are the same mathematics: heads of absorbed attention over latents, with
// W_UK folded into the query and W_UV into the output, against keys and values projected up.
TEST_P(AttendExpandedTest, EqualsTheAbsorbedForm) {
  const TestBackend& b = GetParam();
  constexpr int kHeads = 4, kNope = 24, kRope = 8, kVdim = 16, kLatent = 64, kContext = 130;
  TestPages pages(DType::kBF16, 1, 3, kLatent, kRope);
  pages.Fill(0, kContext, 1);
  const TestMatrix kv_b(DType::kBF16, kHeads * (kNope + kVdim), kLatent, 4);
  const std::vector<int> positions = {0, 63, 64, 129};
  const std::vector<float> q = Normals(4 * kHeads * (kNope + kRope), 5, 4);
  const TestTensor queries(b.act(), {4, kHeads, kNope + kRope}, q), four = Live(4);
  const TensorView q_nope = queries.view().Slice(2, 0, kNope);
  const TensorView q_rope = queries.view().Slice(2, kNope, kNope + kRope);

  // Absorbed.
  std::vector<Parts> uk, uv;
  for (int h = 0; h < kHeads; ++h) {
    const int begin = h * (kNope + kVdim);
    uk.push_back({Transposed(SliceOutputs(kv_b.weight, begin, begin + kNope))});
    uv.push_back({SliceOutputs(kv_b.weight, begin + kNope, begin + kNope + kVdim)});
  }
  const auto w_uk = Pack(b, uk, {.exact_activations = true}),
             w_uv = Pack(b, uv, {.exact_activations = true});
  const TestTokens map(pages, {0, 0, 0, 0}, positions, 4);
  TestTensor q_latent(b.act(), {4, kHeads, kLatent}), sum(b.act(), {4, kHeads, kLatent});
  TestTensor absorbed(b.act(), {4, kHeads, kVdim});
  RunOp(b, &Ops::head_linear, {.x = q_nope, .weight = w_uk.get(), .live = four, .out = q_latent});
  RunOp(b, &Ops::attend_absorbed,
        {.q_latent = q_latent,
         .q_rope = q_rope,
         .tokens = map.map(),
         .pages = pages.pages(),
         .scale = 0.2f,
         .out = sum});
  RunOp(b, &Ops::head_linear, {.x = sum, .weight = w_uv.get(), .live = four, .out = absorbed});

  // Expanded, in chunks of 100.
  const auto w_kv_b = Pack(b, {{kv_b.weight}});
  TestTensor out(b.act(), {4, kHeads, kVdim}), lse(DType::kF32, {4, kHeads});
  for (const int begin : {0, 100}) {
    const int n = std::min(100, kContext - begin);
    TestTensor latent(b.act(), {n, kLatent}), rope(b.act(), {n, kRope});
    TestTensor kv(b.act(), {n, kHeads * (kNope + kVdim)});
    const ContextPiece piece{.begin = begin, .count = n, .tokens = 4};
    RunOp(b, &Ops::gather_context,
          {.pages = pages.pages(),
           .page_table = pages.table(),
           .pieces = {&piece, 1},
           .latent = latent,
           .rope = rope});
    RunOp(b, &Ops::linear, {.x = latent, .weight = w_kv_b.get(), .live = Live(n), .out = kv});
    RunOp(b, &Ops::attend_expanded,
          {.q = queries,
           .positions = map.positions,
           .kv = kv.view().Reshaped({n, kHeads, kNope + kVdim}),
           .rope = rope,
           .pieces = {&piece, 1},
           .scale = 0.2f,
           .out = out,
           .lse = lse});
  }
  ExpectClose(absorbed.Floats(), out.Floats(), 1e-5 + 4 * Rounding(b));
}

}  // namespace
}  // namespace fathom
