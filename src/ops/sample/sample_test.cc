#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/sample/uniform.h"
#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(SampleTest);

constexpr float kInf = std::numeric_limits<float>::infinity();

// What a logit vector asks for.
struct Request {
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
};

struct Output {
  std::vector<int32_t> tokens, ok;
};

// Vector i of logits is sampled for slot slots - 1 - i, which asks for requests[i]; the new token's
// position is positions[i].
Output RunVectors(const TestBackend& b, const std::vector<float>& logits, int vocab,
                  const std::vector<Request>& requests, const std::vector<int32_t>& positions) {
  const auto live = static_cast<int32_t>(requests.size());
  TestSlots slots(live + 1, vocab);
  // Every other token of the batch is sampled from.
  std::vector<int32_t> index, token_slot, token_positions;
  for (int32_t i = 0; i < live; ++i) {
    const int32_t slot = live - i;
    index.push_back(2 * i + 1);
    token_slot.insert(token_slot.end(), {0, slot});
    token_positions.insert(token_positions.end(), {-1, positions[i] - 1});
    At<float>(slots.temperature, slot) = requests[i].temperature;
    At<float>(slots.top_p, slot) = requests[i].top_p;
    At<float>(slots.min_p, slot) = requests[i].min_p;
    At<int32_t>(slots.top_k, slot) = requests[i].top_k;
    At<int32_t>(slots.seed, slot, 0) = static_cast<int32_t>(requests[i].seed);
    At<int32_t>(slots.seed, slot, 1) = static_cast<int32_t>(requests[i].seed >> 32);
  }
  TestTensor tokens(DType::kI32, {live + 1}), ok(DType::kI32, {live + 1});
  RunOp(b, &Ops::sample,
        {.logits = TestTensor(DType::kF32, {live + 1, vocab}, logits),
         .index = Ints({live + 1}, index),
         .token_slot = Ints({2 * live + 1}, token_slot),
         .positions = Ints({2 * live + 1}, token_positions),
         .slots = slots.state(),
         .live = Live(live),
         .tokens = tokens,
         .ok = ok});
  EXPECT_TRUE(tokens.PoisonedFrom(live) && ok.PoisonedFrom(live));
  Output out = {tokens.Ints(), ok.Ints()};
  out.tokens.resize(live);
  out.ok.resize(live);
  return out;
}

// Draws `n` tokens from the same logits, at positions 0..n-1.
std::vector<int32_t> Draws(const TestBackend& b, const std::vector<float>& logits,
                           const Request& request, int n) {
  std::vector<float> vectors;
  for (int i = 0; i < n; ++i) vectors.insert(vectors.end(), logits.begin(), logits.end());
  const Output out = RunVectors(b, vectors, static_cast<int>(logits.size()),
                                std::vector<Request>(n, request), Range(n));
  for (const int32_t ok : out.ok) EXPECT_EQ(ok, 1);
  return out.tokens;
}

// The ids that ever come, in ascending order.
std::vector<int32_t> Support(const TestBackend& b, const std::vector<float>& logits,
                             const Request& request) {
  std::vector<int32_t> tokens = Draws(b, logits, request, 300);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

std::vector<float> Logs(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return probabilities;
}

TEST(SampleUniformTest, PhiloxOfSeedAndPosition) {
  // Philox4x32-10's published answer for an all-zero key and counter begins with 0x6627e8d5.
  EXPECT_EQ(SampleUniform(0, 0, 0), (0x6627e8d5 + 0.5) / 4294967296.0);
  EXPECT_NE(SampleUniform(0, 0, 1), SampleUniform(0, 0, 0));
  EXPECT_NE(SampleUniform(0, 1, 0), SampleUniform(1, 0, 0));
}

TEST_P(SampleTest, DistributionIsTheSoftmax) {
  constexpr int kDraws = 20000, kVocab = 40;
  const std::vector<float> logits = Normals(kVocab, 1, 1.5f);
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    std::vector<double> p;
    double sum = 0;
    for (const float logit : logits) sum += p.emplace_back(std::exp(double{logit} / temperature));
    std::vector<int> counts(kVocab);
    for (const int32_t t :
         Draws(GetParam(), logits, {.temperature = temperature, .seed = 99}, kDraws)) {
      ++counts[t];
    }
    // Pearson's chi-squared over the ids that are expected five times and more; the rest as one.
    double statistic = 0, rest_expected = 0, rest = 0;
    int cells = 0;
    for (int v = 0; v < kVocab; ++v) {
      const double expected = p[v] / sum * kDraws;
      if (expected < 5) {
        rest_expected += expected;
        rest += counts[v];
        continue;
      }
      statistic += (counts[v] - expected) * (counts[v] - expected) / expected;
      ++cells;
    }
    if (rest_expected >= 1) {
      statistic += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    }
    // Mean `cells`, deviation sqrt(2 cells): four deviations.
    EXPECT_LT(statistic, cells + 4 * std::sqrt(2.0 * cells)) << temperature;
    EXPECT_GT(statistic, cells - 4 * std::sqrt(2.0 * cells)) << temperature;
  }
}

TEST_P(SampleTest, InverseCdfInOrderOfFallingLogit) {
  // Ids in that order: 2 (0.5), 0 (0.2), 3 (0.2), 1 (0.1).
  const std::vector<float> logits = Logs({0.2f, 0.1f, 0.5f, 0.2f});
  const std::vector<int32_t> tokens =
      Draws(GetParam(), logits, {.seed = 0x123456789abcdefull}, 500);
  for (int position = 0; position < 500; ++position) {
    const double u = SampleUniform(0x89abcdef, 0x01234567, position);
    EXPECT_EQ(tokens[position], u < 0.5 ? 2 : u < 0.7 ? 0 : u < 0.9 ? 3 : 1) << u;
  }
}

TEST_P(SampleTest, GreedyTakesTheGreatestAndTheLowerIdOfTies) {
  std::vector<float> x = Normals(3 * 257, 2);
  x[100] = x[200] = 50;
  x[257 + 256] = x[257 + 0] = 50;
  x[2 * 257 + 256] = 50;
  const Output out =
      RunVectors(GetParam(), x, 257, std::vector<Request>(3, {.temperature = 0}), {1, 2, 3});
  EXPECT_EQ(out.tokens, (std::vector<int32_t>{100, 0, 256}));
  // Those that are read 16 bytes at a time, all or the first alone; the lower id of equals is seen
  // last.
  for (const int vocab : {8192, 4099}) {
    std::vector<float> wide = Normals(2 * vocab, 3);
    for (const int id : {vocab + 4096, vocab + 4095, vocab + 5, 3, vocab - 1}) wide[id] = 50;
    EXPECT_EQ(
        RunVectors(GetParam(), wide, vocab, std::vector<Request>(2, {.temperature = 0}), {1, 2})
            .tokens,
        (std::vector<int32_t>{3, 5}));
  }
  // Greedy whatever else is asked.
  const Request odd = {.temperature = 0, .top_p = 0.1f, .min_p = 1, .top_k = 1};
  EXPECT_EQ(Draws(GetParam(), {1, 3, 3, 2}, odd, 3), (std::vector<int32_t>{1, 1, 1}));
}

TEST_P(SampleTest, TopK) {
  const std::vector<float> x = {1, 3, 2, 3, 2, 2};
  const auto support = [&](int32_t top_k) {
    return Support(GetParam(), x, {.temperature = 5, .top_k = top_k});
  };
  EXPECT_EQ(support(1), (std::vector<int32_t>{1}));
  EXPECT_EQ(support(2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(support(3), (std::vector<int32_t>{1, 2, 3}));  // of the tie at the border: the lower id
  EXPECT_EQ(support(4), (std::vector<int32_t>{1, 2, 3, 4}));
  for (const int32_t all : {0, 6, 7, 1000000}) {
    EXPECT_EQ(support(all), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  }
}

TEST_P(SampleTest, TopP) {
  const std::vector<float> x = Logs({0.1f, 0.4f, 0.2f, 0.3f});
  const auto support = [&](float top_p, int32_t top_k = 0) {
    return Support(GetParam(), x, {.top_p = top_p, .top_k = top_k});
  };
  EXPECT_EQ(support(1e-6f), (std::vector<int32_t>{1}));
  EXPECT_EQ(support(0.39f), (std::vector<int32_t>{1}));
  EXPECT_EQ(support(0.41f), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(support(0.69f), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(support(0.71f), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(support(0.91f), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(support(1), (std::vector<int32_t>{0, 1, 2, 3}));
  // Of what top_k = 2 leaves, 4/7 is the first.
  EXPECT_EQ(support(0.56f, 2), (std::vector<int32_t>{1}));
  EXPECT_EQ(support(0.58f, 2), (std::vector<int32_t>{1, 3}));
  // Ties: the lower ids, until the mass is reached. Eight equal probabilities are exact.
  EXPECT_EQ(Support(GetParam(), std::vector<float>(8, 0), {.top_p = 0.5f}),
            (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST_P(SampleTest, MinP) {
  const std::vector<float> x = Logs({0.1f, 0.4f, 0.2f, 0.3f});
  const auto support = [&](float min_p) { return Support(GetParam(), x, {.min_p = min_p}); };
  EXPECT_EQ(support(0), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(support(0.24f), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(support(0.26f), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(support(0.51f), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(support(0.76f), (std::vector<int32_t>{1}));
  // The greatest stays, and whatever equals it.
  EXPECT_EQ(Support(GetParam(), {2, 1, 2}, {.min_p = 1}), (std::vector<int32_t>{0, 2}));
}

TEST_P(SampleTest, BannedTokensNeverCome) {
  EXPECT_EQ(Support(GetParam(), {-kInf, 1, -kInf, 1, 0, -kInf}, {.temperature = 3}),
            (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(Support(GetParam(), {-kInf, -kInf, -5}, {}), (std::vector<int32_t>{2}));
  EXPECT_EQ(Support(GetParam(), {-kInf, -kInf, -5}, {.top_p = 0.1f, .top_k = 3}),
            (std::vector<int32_t>{2}));
}

TEST_P(SampleTest, ExtremeTemperatures) {
  EXPECT_EQ(Support(GetParam(), {1, 2, 1.5f}, {.temperature = 1e-6f}), (std::vector<int32_t>{1}));
  EXPECT_EQ(Support(GetParam(), {2, 2, 1.5f}, {.temperature = 1e-30f}),
            (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Support(GetParam(), {-30000, 30000, 0}, {.temperature = 1e6f}),
            (std::vector<int32_t>{0, 1, 2}));
}

TEST_P(SampleTest, AVectorThatCannotBeSampledSaysSo) {
  constexpr int kVocab = 200;
  std::vector<float> x = Normals(5 * kVocab, 3);
  const std::vector<Request> requests(5, {.temperature = 0.7f, .seed = 4});
  const Output clean = RunVectors(GetParam(), x, kVocab, requests, {1, 2, 3, 4, 5});
  x[0 * kVocab + 199] = NAN;
  std::fill_n(&x[2 * kVocab], kVocab, -kInf);
  x[4 * kVocab + 3] = kInf;
  for (const float temperature : {0.0f, 0.7f}) {
    const Output out = RunVectors(GetParam(), x, kVocab,
                                  std::vector<Request>(5, {.temperature = temperature, .seed = 4}),
                                  {1, 2, 3, 4, 5});
    EXPECT_EQ(out.ok, (std::vector<int32_t>{0, 1, 0, 1, 0}));
    for (const int vector : {0, 2, 4}) EXPECT_EQ(out.tokens[vector], -1);
    if (temperature > 0) {
      EXPECT_EQ(out.tokens[1], clean.tokens[1]);
      EXPECT_EQ(out.tokens[3], clean.tokens[3]);
    }
  }
}

// More tokens than are compared with each other: flat, all alike, alike but for some, and all but
// one unlikely.
TEST_P(SampleTest, LargeVocabularies) {
  constexpr int kVocab = 6000, kKinds = 4;
  std::vector<float> kinds[kKinds] = {Normals(kVocab, 8), std::vector<float>(kVocab, 1.5f),
                                      std::vector<float>(kVocab, -2.0f), Normals(kVocab, 9, 0.01f)};
  for (int i = 0; i < 700; ++i) kinds[2][i * 7] = 3.25f;
  kinds[3][777] = 40;
  const std::vector<Request> requests = {{},
                                         {.top_p = 0.5f},
                                         {.top_k = 3000},
                                         {.temperature = 0.6f, .top_p = 0.95f, .top_k = 1000},
                                         {.temperature = 5, .min_p = 0.5f},
                                         {.temperature = 50, .top_p = 0.9f, .min_p = 0.9f}};
  for (const std::vector<float>& logits : kinds) {
    std::vector<float> vectors;
    std::vector<Request> of_vectors;
    for (int i = 0; i < 12; ++i) {
      vectors.insert(vectors.end(), logits.begin(), logits.end());
      of_vectors.push_back(requests[i % requests.size()]);
    }
    ExpectAsOracle(GetParam(), 0, [&](const TestBackend& b) {
      const Output out = RunVectors(b, vectors, kVocab, of_vectors, Range(12));
      return std::vector<float>(out.tokens.begin(), out.tokens.end());
    });
  }
}

TEST_P(SampleTest, AFunctionOfSeedAndPositionAlone) {
  constexpr int kVocab = 300, kVectors = 64;
  const std::vector<float> x = Normals(kVectors * kVocab, 5, 2);
  std::vector<Request> requests;
  for (int i = 0; i < kVectors; ++i) {
    requests.push_back({.temperature = 0.5f + 0.02f * static_cast<float>(i),
                        .top_p = i % 3 == 0 ? 0.9f : 1.0f,
                        .min_p = i % 5 == 0 ? 0.02f : 0.0f,
                        .top_k = i % 4 == 0 ? 20 : 0,
                        .seed = static_cast<uint64_t>(i) << (i % 40)});
  }
  const auto run = [&](const TestBackend& b, const std::vector<int>& vectors) {
    std::vector<Request> some;
    std::vector<int32_t> positions;
    for (int vector : vectors) {
      some.push_back(requests[vector]);
      positions.push_back(1000 + vector);
    }
    const Output out = RunVectors(b, PickVectors(x, kVocab, vectors), kVocab, some, positions);
    return std::vector<float>(out.tokens.begin(), out.tokens.end());
  };
  ExpectAsOracle(GetParam(), 0, [&](const TestBackend& b) { return run(b, Range(kVectors)); });
  ExpectTokenInvariance(kVectors, 1,
                        [&](const std::vector<int>& vectors) { return run(GetParam(), vectors); });
  EXPECT_TRUE(run(GetParam(), {}).empty());
  // Both halves of the seed count, and the position does.
  const std::vector<int32_t> draws =
      Draws(GetParam(), PickVectors(x, kVocab, {0}), {.seed = 1}, 50);
  EXPECT_NE(draws, Draws(GetParam(), PickVectors(x, kVocab, {0}), {.seed = 1ull << 32}, 50));
  EXPECT_GT(std::count_if(draws.begin(), draws.end(), [&](int32_t t) { return t != draws[0]; }),
            25);
}

}  // namespace
}  // namespace fathom
