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

TEST_P(RotateAndCacheTest, AsTheOracle) {
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

// By which pair i turns at position p.
double Angle(int p, int i, int rope) {
  return p * std::pow(10000.0, -2.0 * i / rope);
}
constexpr double kFactor = 1.25;  // such as YaRN's, which is part of the table

TEST_P(RotateAndCacheTest, RotatesInterleavedPairs) {
  constexpr int kMax = 300;
  const std::vector<int> positions = {0, 1, 17, 299};
  for (const auto& [latent, rope, heads] : {Widths{512, 64, 16}, {8, 64, 1}, {8, 2}, {8, 10}}) {
    SCOPED_TRACE(testing::Message() << latent << " " << heads << " x " << rope);
    const int wide = heads * rope + latent + rope;  // queries, latent, key
    const std::vector<float> x = Normals(4 * wide, 1);
    std::vector<float> cos_sin, expected;
    for (int p = 0; p < kMax; ++p) {
      for (int i = 0; i < rope; ++i) {
        const double angle = Angle(p, i % (rope / 2), rope);
        cos_sin.push_back(
            static_cast<float>(kFactor * (i < rope / 2 ? std::cos(angle) : std::sin(angle))));
      }
    }
    const auto expect = [&, rope = rope](int t, int at) {
      for (int i = 0; i < rope; i += 2) {
        const double angle = Angle(positions[t], i / 2, rope);
        const double a = x[t * wide + at + i], b = x[t * wide + at + i + 1];
        expected.push_back(
            static_cast<float>(kFactor * (a * std::cos(angle) - b * std::sin(angle))));
        expected.push_back(
            static_cast<float>(kFactor * (a * std::sin(angle) + b * std::cos(angle))));
      }
    };
    for (int t = 0; t < 4; ++t) {
      for (int h = 0; h < heads; ++h) expect(t, h * rope);
      expect(t, wide - rope);
    }
    const TestPages pages(DType::kF32, 1, 5, latent, rope);
    const TestTokens tokens(pages, {0, 0, 0, 0}, positions, 4);
    const TestTensor both(GetParam().act(), {4, wide}, x);
    const TensorView q(both.view().data(), GetParam().act(), {4, heads, rope}, {wide, rope, 1});
    RunOp(GetParam(), &Ops::rotate_and_cache,
          {.kv_a = both.view().Slice(1, heads * rope, wide),
           .latent_norm = TestTensor(DType::kF32, {latent}, Normals(latent, 3)),
           .q_rope = q,
           .cos_sin = TestTensor(DType::kF32, {kMax, 2, rope / 2}, cos_sin),
           .tokens = tokens.map(),
           .pages = pages.pages()});
    const std::vector<float> after = both.Floats();
    std::vector<float> result;
    for (int t = 0; t < 4; ++t) {
      result.insert(result.end(), &after[t * wide], &after[t * wide] + heads * rope);
      const std::vector<float> key = pages.Rope(0, positions[t]);
      result.insert(result.end(), key.begin(), key.end());
    }
    ExpectClose(result, expected, 1e-6 + Rounding(GetParam()));
  }
}

// A token whose normed latent and rotated key are given, at a place of slot 0: ones, normed without
// eps, are the norm's weights, and nothing is turned.
void Store(const TestBackend& b, const TestPages& pages, int position,
           const std::vector<float>& latent, const std::vector<float>& key) {
  const auto width = static_cast<int64_t>(latent.size()), rope = static_cast<int64_t>(key.size());
  std::vector<float> kv_a(latent.size(), 1), cos_sin;
  kv_a.insert(kv_a.end(), key.begin(), key.end());
  for (int p = 0; p <= position; ++p) {
    cos_sin.insert(cos_sin.end(), rope / 2, 1);
    cos_sin.insert(cos_sin.end(), rope / 2, 0);
  }
  const TestTokens tokens(pages, {0}, {position}, 1);
  RunOp(b, &Ops::rotate_and_cache,
        {.kv_a = TestTensor(b.act(), {1, width + rope}, kv_a),
         .latent_norm = TestTensor(DType::kF32, {width}, latent),
         .eps = 0,
         .q_rope = TestTensor(b.act(), {1, 1, rope}, key),
         .cos_sin = TestTensor(DType::kF32, {position + 1, 2, rope / 2}, cos_sin),
         .tokens = tokens.map(),
         .pages = pages.pages()});
}

TEST_P(RotateAndCacheTest, WritesItsPlaceAndNothingElse) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const int position : {0, 62, 63, 64, 128, 191}) {
      const TestPages pages(dtype, 2, 3, 48, 10);
      const std::vector<float> latent = Normals(48, 1), key = Normals(10, 2);
      Store(GetParam(), pages, position, latent, key);
      for (int slot = 0; slot < 2; ++slot) {
        for (int p = 0; p < 3 * kPageTokens; ++p) {
          const bool here = slot == 0 && p == position;
          ExpectSameBits(pages.Latent(slot, p),
                         here ? RoundLatent(latent, dtype) : std::vector<float>(48, NAN));
          ExpectSameBits(pages.Rope(slot, p), here ? key : std::vector<float>(10, NAN));
        }
      }
    }
  }
}

TEST_P(RotateAndCacheTest, RoundsToNearestEven) {
  const TestPages pages(DType::kBF16, 1, 1, 3, 2);
  Store(GetParam(), pages, 0, {1 + 0x1p-8f, 1 + 0x3p-8f, NAN}, {-1, 2});
  ExpectSameBits(pages.Latent(0, 0), {1, 1 + 0x4p-8f, NAN});
  ExpectSameBits(pages.Rope(0, 0), {-1, 2});
  if (GetParam().act() != DType::kF32) return;  // its keys are rounded before
  Store(GetParam(), pages, 0, {1, 1, 1}, {-1 - 0x1.1p-8f, 1 + 0x3p-8f});
  ExpectSameBits(pages.Rope(0, 0), {-1 - 0x2p-8f, 1 + 0x4p-8f});
}

// A NaN, an infinity, zeros, the largest and the smallest: a token's scale is its own.
TEST_P(RotateAndCacheTest, ScalesEachLatentByItsLargestChannel) {
  const std::vector<std::vector<float>> latents = {
      {0, 0, 0},   {448, 1, -0.0625f}, {449, 1, -0.0625f}, {0x1p-60f, 0, 0}, {0x1p100f, 0x1p91f, 3},
      {1, NAN, 2}, {1, INFINITY, 2},   {-3, 2.5f, 1e-3f}};
  const TestPages pages(DType::kF8E4M3, 1, 1, 3, 2);
  for (int t = 0; t < static_cast<int>(latents.size()); ++t) {
    SCOPED_TRACE(t);
    Store(GetParam(), pages, t, latents[static_cast<size_t>(t)], {1.5f, 1.5f});
    ExpectSameBits(pages.Latent(0, t),
                   RoundLatent(latents[static_cast<size_t>(t)], DType::kF8E4M3));
    ExpectSameBits(pages.Rope(0, t), {1.5f, 1.5f});
  }
  // A power of two, so that codes x scale are numbers of BF16.
  EXPECT_EQ(pages.Latent(0, 1), (std::vector<float>{448, 1, -0.0625f}));
  for (const float value : pages.Latent(0, 5)) EXPECT_TRUE(std::isnan(value));
}

// At its place, whatever else the step holds.
TEST_P(RotateAndCacheTest, ATokenDoesNotDependOnOthers) {
  constexpr int kAll = 27, kLatent = 48, kRope = 14, kHeads = 3;
  const std::vector<float> q = Normals(kAll * kHeads * kRope, 1),
                           kv_a = Normals(kAll * (kLatent + kRope), 2);
  const TestTensor cos_sin(DType::kF32, {kMaxPositions, 2, kRope / 2},
                           Normals(kMaxPositions * kRope, 3));
  const auto run = [&](const std::vector<int>& picked) {
    const auto n = static_cast<int>(picked.size());
    const TestPages pages(DType::kF8E4M3, 1, 4, kLatent, kRope);
    std::vector<int> positions;
    for (const int t : picked) positions.push_back(t * 7);
    const TestTokens tokens(pages, std::vector<int>(picked.size(), 0), positions, n + 1);
    const TestTensor queries(GetParam().act(), {n + 1, kHeads, kRope},
                             PickVectors(q, kHeads * kRope, picked));
    RunOp(GetParam(), &Ops::rotate_and_cache,
          {.kv_a = TestTensor(GetParam().act(), {n + 1, kLatent + kRope},
                              PickVectors(kv_a, kLatent + kRope, picked)),
           .latent_norm = TestTensor(DType::kF32, {kLatent}, Normals(kLatent, 4)),
           .q_rope = queries,
           .cos_sin = cos_sin,
           .tokens = tokens.map(),
           .pages = pages.pages()});
    EXPECT_TRUE(queries.PoisonedFrom(n));
    const std::vector<float> turned = queries.Floats();
    std::vector<float> result;
    for (int i = 0; i < n; ++i) {
      for (const auto& part : {pages.Latent(0, positions[i]), pages.Rope(0, positions[i])}) {
        result.insert(result.end(), part.begin(), part.end());
      }
      result.insert(result.end(), &turned[i * kHeads * kRope],
                    &turned[i * kHeads * kRope] + kHeads * kRope);
    }
    return result;
  };
  ExpectTokenInvariance(kAll, kLatent + kRope + kHeads * kRope, run);
}

}  // namespace
}  // namespace fathom
