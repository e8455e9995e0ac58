#include <cmath>

#include "ops/test_pages.h"
#include "ops/test_weights.h"

namespace fathom {
namespace {

EVERY_BACKEND(RotateAndCacheTest);

constexpr int kMaxPositions = 200, kTokens = 6;
const std::vector<int> kSlots = {1, 0, 0, 0, 0, 1}, kPositions = {0, 62, 63, 64, 130, 191};

struct Widths {
  int latent, rope, heads = 3;
};

// What the pages hold at each token's place, then its rotated queries.
std::vector<float> RunTokens(const TestBackend& b, const Widths& w, DType pages_type, int live) {
  const TestPages pages(pages_type, 2, 3, w.latent, w.rope);
  const TestTokens tokens(pages, {kSlots.begin(), kSlots.begin() + live},
                          {kPositions.begin(), kPositions.begin() + live}, kTokens);
  const TestTensor kv_a(b.act(), {kTokens, w.latent + w.rope},
                        Normals(kTokens * (w.latent + w.rope), 1));
  const TestTensor q(b.act(), {kTokens, w.heads, 8 + w.rope},
                     Normals(kTokens * w.heads * (8 + w.rope), 2));
  const std::vector<float> before = q.Floats();
  std::vector<float> cos_sin;
  for (int p = 0; p < kMaxPositions; ++p) {
    for (int i = 0; i < w.rope; ++i) {
      const float angle = static_cast<float>(p * (i % (w.rope / 2) + 1)) * 0.1f;
      cos_sin.push_back(i < w.rope / 2 ? std::cos(angle) : std::sin(angle));
    }
  }
  RunOp(b, &Ops::rotate_and_cache,
        {.kv_a = kv_a,
         .latent_norm = TestTensor(DType::kF32, {w.latent}, Normals(w.latent, 3)),
         .eps = 1e-5f,
         .q_rope = q.view().Slice(2, 8, 8 + w.rope),
         .cos_sin = TestTensor(DType::kF32, {kMaxPositions, 2, w.rope / 2}, cos_sin),
         .tokens = tokens.map(),
         .pages = pages.pages()});
  std::vector<float> result;
  for (int t = 0; t < kTokens; ++t) {
    for (const std::vector<float>& part :
         {pages.Latent(kSlots[t], kPositions[t]), pages.Rope(kSlots[t], kPositions[t])}) {
      if (t >= live) {
        for (const float x : part) EXPECT_TRUE(std::isnan(x));  // not written
      } else {
        result.insert(result.end(), part.begin(), part.end());
      }
    }
  }
  const std::vector<float> after = q.Floats();
  const auto width = static_cast<size_t>(8 + w.rope);
  for (size_t i = 0; i < after.size(); ++i) {
    if (i % width < 8 || i >= static_cast<size_t>(live * w.heads) * width) {
      EXPECT_EQ(after[i], before[i]);
    } else {
      result.push_back(after[i]);
    }
  }
  return result;
}

TEST_P(RotateAndCacheTest, IsTheComposition) {
  for (const Widths& w : {Widths{512, 64}, {512, 64, 20}, {48, 10}, {7, 2}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      for (const int live : {0, 1, kTokens}) {
        SCOPED_TRACE(testing::Message()
                     << w.latent << " " << w.heads << " " << Name(dtype) << " " << live);
        // Pages round what the oracle computes too: a number between two codes may go either way.
        const double rounding = dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 4e-3 : 2e-2;
        ExpectAsOracle(GetParam(), 2e-6 + Rounding(GetParam()) + rounding,
                       [&](const TestBackend& b) { return RunTokens(b, w, dtype, live); });
      }
    }
  }
}

// W_UK's product reads the part of the queries that is not rotated: it may run beside.
TEST_P(RotateAndCacheTest, AProductBesideIt) {
  constexpr int kHeads = 3, kNope = 128, kRope = 64, kLatent = 512;
  const TestBackend& b = GetParam();
  const TestMatrix m(DType::kBF16, kHeads * kLatent, kNope, 4);
  std::vector<Parts> heads;
  for (int h = 0; h < kHeads; ++h) {
    heads.push_back({SliceRows(m.weight, h * kLatent, (h + 1) * kLatent)});
  }
  const auto w = Pack(b, heads, {.exact_activations = true});
  const TestPages pages(DType::kF32, 2, 3, kLatent, kRope);
  const TestTokens tokens(pages, kSlots, kPositions, kTokens);
  const TestTensor kv_a(b.act(), {kTokens, kLatent + kRope},
                        Normals(kTokens * (kLatent + kRope), 1));
  const TestTensor q(b.act(), {kTokens, kHeads, kNope + kRope},
                     Normals(kTokens * kHeads * (kNope + kRope), 2));
  const TestTensor live = Live(kTokens), norm(DType::kF32, {kLatent}, Normals(kLatent, 3));
  const TestTensor cos_sin(DType::kF32, {kMaxPositions, 2, kRope / 2},
                           Normals(kMaxPositions * kRope, 5));
  const TestTensor beside(b.act(), {kTokens, kHeads, kLatent}),
      alone(b.act(), {kTokens, kHeads, kLatent});
  const RotateAndCacheArgs rotate = {.kv_a = kv_a,
                                     .latent_norm = norm,
                                     .q_rope = q.view().Slice(2, kNope, kNope + kRope),
                                     .cos_sin = cos_sin,
                                     .tokens = tokens.map(),
                                     .pages = pages.pages()};
  HeadLinearArgs product = {.x = q.view().Slice(2, 0, kNope),
                            .weight = w.get(),
                            .live = live,
                            .out = beside,
                            .x_early = true};
  const size_t bytes = std::max(b.ops->rotate_and_cache.Workspace(b.stream(), rotate),
                                b.ops->head_linear.Workspace(b.stream(), product));
  const TestTensor workspace(DType::kU8, {static_cast<int64_t>(bytes)});
  OpContext context = {b.stream(), {workspace.view().As<std::byte>(), bytes}};
  b.ops->rotate_and_cache(context, rotate);
  b.ops->head_linear(context, product);
  b.stream().Synchronize();
  product.out = alone, product.x_early = false;
  RunOp(b, &Ops::head_linear, product);
  ExpectSameBits(beside.Floats(), alone.Floats());
}

}  // namespace
}  // namespace fathom
