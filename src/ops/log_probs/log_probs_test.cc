#include <algorithm>
#include <cmath>

#include "ops/testing.h"

namespace fathom {
namespace {

EVERY_BACKEND(LogProbsTest);

struct Output {
  std::vector<float> logprob, top_logprobs, named;
  std::vector<int32_t> top_ids;
};

// Three slots and what they name, of which `count` are asked for; the batch's tokens are of slots
// 2, 0, 1, 1.
struct NamedIds {
  std::vector<std::vector<int32_t>> of_slots;
  std::vector<int32_t> index;
  int count = 0;
};

Output RunVectors(const TestBackend& b, const std::vector<float>& logits,
                  const std::vector<int32_t>& tokens, int vocab, int top,
                  const NamedIds& asked = {}) {
  const auto live = static_cast<int32_t>(tokens.size());
  const bool has_named = asked.count > 0;
  const int64_t most = has_named ? static_cast<int64_t>(asked.of_slots[0].size()) : 1;
  std::vector<int32_t> of_slots;
  for (const auto& ids : asked.of_slots) of_slots.insert(of_slots.end(), ids.begin(), ids.end());
  const TestTensor index = Ints({live + 1}, asked.index), token_slot = Ints({4}, {2, 0, 1, 1});
  const TestTensor slot_ids = Ints({3, most}, of_slots);
  TestTensor named(DType::kF32, {live + 1, has_named ? asked.count : 1});
  TestTensor logprob(DType::kF32, {live + 1}), top_ids(DType::kI32, {live + 1, top});
  TestTensor top_logprobs(DType::kF32, {live + 1, top});
  RunOp(b, &Ops::log_probs,
        {.logits = TestTensor(DType::kF32, {live + 1, vocab}, logits),
         .tokens = Ints({live + 1}, tokens),
         .live = Live(live),
         .logprob = logprob,
         .top_ids = top_ids,
         .top_logprobs = top_logprobs,
         .named = has_named ? SlotIds{index, token_slot, slot_ids, named} : SlotIds()});
  EXPECT_TRUE(named.PoisonedFrom(has_named ? live : 0));
  EXPECT_TRUE(logprob.PoisonedFrom(live) && top_ids.PoisonedFrom(live) &&
              top_logprobs.PoisonedFrom(live));
  Output out = {logprob.Floats(), top_logprobs.Floats(), named.Floats(), top_ids.Ints()};
  out.logprob.resize(live);
  out.top_ids.resize(live * top);
  out.top_logprobs.resize(live * top);
  out.named.resize(live * asked.count);
  return out;
}

// What is asked for of a draft: the likeliest id, and no number.
TEST_P(LogProbsTest, IdsAlone) {
  for (const auto& [vocab, top] : {std::pair{1, 1}, {7, 3}, {4096, 1}, {5001, 1}}) {
    SCOPED_TRACE(vocab);
    std::vector<float> x = Normals(3 * vocab, 1, 5);
    for (int v = 1; v < vocab; v += 2) x[vocab + v] = 1e3;  // ties: the lowest
    const std::vector<int32_t> tokens(3, -1);
    TestTensor ids(DType::kI32, {4, top});
    RunOp(GetParam(), &Ops::log_probs,
          {.logits = TestTensor(DType::kF32, {4, vocab}, x), .live = Live(3), .top_ids = ids});
    EXPECT_TRUE(ids.PoisonedFrom(3));
    std::vector<int32_t> got = ids.Ints();
    got.resize(3 * top);
    EXPECT_EQ(got, RunVectors(GetParam(), x, tokens, vocab, top).top_ids);
    if (vocab > 1) EXPECT_EQ(got[top], 1);
  }
}

TEST_P(LogProbsTest, IsTheFormula) {
  for (const auto& [vocab, top] : {std::pair{1, 1}, {7, 7}, {4096, 20}, {5001, 0}, {129, 5}}) {
    SCOPED_TRACE(vocab);
    const std::vector<float> x = Normals(3 * vocab, 1, 5);
    const std::vector<int32_t> tokens = {0, vocab - 1, vocab / 2};
    const Output got = RunVectors(GetParam(), x, tokens, vocab, top);
    for (int vector = 0; vector < 3; ++vector) {
      const float* logits = &x[vector * vocab];
      double sum = 0;
      for (int v = 0; v < vocab; ++v) sum += std::exp(double{logits[v]});
      EXPECT_NEAR(got.logprob[vector], logits[tokens[vector]] - std::log(sum), 1e-5);
      std::vector<int> order = Range(vocab);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return logits[a] > logits[b]; });
      for (int i = 0; i < top; ++i) {
        EXPECT_EQ(got.top_ids[vector * top + i], order[i]);
        EXPECT_NEAR(got.top_logprobs[vector * top + i], logits[order[i]] - std::log(sum), 1e-5);
      }
    }
    ExpectAsOracle(GetParam(), 1e-6, [&, vocab = vocab, top = top](const TestBackend& b) {
      return RunVectors(b, x, tokens, vocab, top).logprob;
    });
  }
  EXPECT_TRUE(RunVectors(GetParam(), {}, {}, 7, 2).logprob.empty());
}

TEST_P(LogProbsTest, TiesGoToTheLowerId) {
  std::vector<float> x(500, 1);
  x[300] = x[100] = 2;
  EXPECT_EQ(RunVectors(GetParam(), x, {0}, 500, 5).top_ids,
            (std::vector<int32_t>{100, 300, 0, 1, 2}));
}

TEST_P(LogProbsTest, LargeLogitsAndImpossibleTokens) {
  const float inf = INFINITY;
  const Output got = RunVectors(GetParam(), {30000, 29999, -inf, -30000}, {2}, 4, 4);
  EXPECT_EQ(got.logprob[0], -inf);
  EXPECT_EQ(got.top_ids, (std::vector<int32_t>{0, 1, 3, 2}));
  EXPECT_NEAR(got.top_logprobs[0], -std::log1p(std::exp(-1.0)), 1e-5);
  EXPECT_NEAR(got.top_logprobs[1], -1 - std::log1p(std::exp(-1.0)), 1e-5);
  EXPECT_EQ(got.top_logprobs[3], -inf);
}

TEST_P(LogProbsTest, NanStaysInItsVector) {
  std::vector<float> x = Normals(3 * 200, 2);
  const Output clean = RunVectors(GetParam(), x, {5, 6, 7}, 200, 4);
  x[200 + 50] = NAN;
  const Output got = RunVectors(GetParam(), x, {5, 6, 7}, 200, 4);
  ExpectSameBits(PickVectors(got.top_logprobs, 4, {0, 2}),
                 PickVectors(clean.top_logprobs, 4, {0, 2}));
  ExpectSameBits(PickVectors(got.logprob, 1, {0, 2}), PickVectors(clean.logprob, 1, {0, 2}));
  EXPECT_TRUE(std::isnan(got.logprob[1]));
  for (int i = 4; i < 8; ++i) {
    EXPECT_TRUE(std::isnan(got.top_logprobs[i]));
    EXPECT_TRUE(got.top_ids[i] >= 0 && got.top_ids[i] < 200);
  }
}

// What `sample` leaves of a logit vector that it cannot draw from.
TEST_P(LogProbsTest, NoTokenHasNoProbability) {
  const std::vector<float> x = Normals(2 * 200, 4);
  const Output got = RunVectors(GetParam(), x, {-1, 6}, 200, 4);
  const Output clean = RunVectors(GetParam(), x, {5, 6}, 200, 4);
  EXPECT_TRUE(std::isnan(got.logprob[0]));
  ExpectSameBits(PickVectors(got.logprob, 1, {1}), PickVectors(clean.logprob, 1, {1}));
  ExpectSameBits(got.top_logprobs, clean.top_logprobs);
  EXPECT_EQ(got.top_ids, clean.top_ids);
}

// Of each vector's own slot; what else is asked for has the bits that it has without.
TEST_P(LogProbsTest, NamedIdsHaveTheBitsOfTheLikeliest) {
  constexpr int kVocab = 129, kCount = 5;
  const std::vector<float> x = Normals(3 * kVocab, 6, 4);
  const NamedIds asked = {
      .of_slots = {{7, 0, 128, 7, -1, 3}, {1, -1, -1, -1, -1, -1}, {128, 64, 5, 6, 100, 2}},
      .index = {3, 0, 1},
      .count = kCount};
  const std::vector<int32_t> tokens = {0, -1, 50};
  const Output got = RunVectors(GetParam(), x, tokens, kVocab, kVocab, asked);
  const Output without = RunVectors(GetParam(), x, tokens, kVocab, kVocab);
  ExpectSameBits(got.logprob, without.logprob);
  ExpectSameBits(got.top_logprobs, without.top_logprobs);
  EXPECT_EQ(got.top_ids, without.top_ids);
  constexpr int kSlots[] = {1, 2, 0};
  std::vector<float> expected;
  for (int vector = 0; vector < 3; ++vector) {
    for (int i = 0; i < kCount; ++i) {
      const int32_t id = asked.of_slots[kSlots[vector]][i];
      const auto ids = without.top_ids.begin() + vector * kVocab;
      const auto at = std::find(ids, ids + kVocab, id) - without.top_ids.begin();
      expected.push_back(id < 0 ? NAN : without.top_logprobs[at]);
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got.named[i])) << i;
    } else {
      ExpectSameBits({got.named[i]}, {expected[i]});
    }
  }
  NamedIds all = {
      .of_slots = asked.of_slots, .index = {0, 1, 0}, .count = 4};  // of slots 2, 0, 2: none is -1
  ExpectAsOracle(GetParam(), 1e-6, [&](const TestBackend& b) {
    return RunVectors(b, x, tokens, kVocab, 0, all).named;
  });
  all.index.clear();
  EXPECT_TRUE(RunVectors(GetParam(), {}, {}, kVocab, 0, all).named.empty());
}

TEST_P(LogProbsTest, NanStaysInItsVectorsNamedIds) {
  std::vector<float> x = Normals(3 * 200, 2);
  const NamedIds asked = {.of_slots = {{3, 4}, {5, 199}, {0, 1}}, .index = {1, 2, 3}, .count = 2};
  const Output clean = RunVectors(GetParam(), x, {5, 6, 7}, 200, 0, asked);
  x[200 + 50] = NAN;
  const Output got = RunVectors(GetParam(), x, {5, 6, 7}, 200, 0, asked);
  ExpectSameBits(PickVectors(got.named, 2, {0, 2}), PickVectors(clean.named, 2, {0, 2}));
  EXPECT_TRUE(std::isnan(got.named[2]) && std::isnan(got.named[3]));
}

TEST_P(LogProbsTest, AVectorDoesNotDependOnOthers) {
  const std::vector<float> x = Normals(33 * 301, 3, 4);
  ExpectTokenInvariance(33, 3, [&](const std::vector<int>& vectors) {
    std::vector<int32_t> tokens(vectors.begin(), vectors.end());
    const Output out = RunVectors(GetParam(), PickVectors(x, 301, vectors), tokens, 301, 2);
    std::vector<float> flat;
    for (size_t i = 0; i < vectors.size(); ++i) {
      flat.insert(flat.end(),
                  {out.logprob[i], out.top_logprobs[2 * i], out.top_logprobs[2 * i + 1]});
    }
    return flat;
  });
}

}  // namespace
}  // namespace fathom
