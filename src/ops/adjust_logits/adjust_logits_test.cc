#include <cmath>

#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(AdjustLogitsTest);

constexpr int kVocab = 300;

// live - 1, ..., 0.
std::vector<int32_t> Backwards(int32_t live) {
  std::vector<int32_t> index;
  for (int32_t i = live - 1; i >= 0; --i) index.push_back(i);
  return index;
}

// Logit vectors of the slots given, with room for one more; the batch has their tokens backwards.
// `ordinal`: of each; empty: of the first of a row.
std::vector<float> RunVectors(const TestBackend& b, const TestSlots& slots,
                              const std::vector<float>& x, const std::vector<int32_t>& vector_slot,
                              std::vector<int32_t> ordinal = {}) {
  ordinal.resize(vector_slot.size(), 0);
  const auto live = static_cast<int32_t>(vector_slot.size());
  const TestTensor logits(DType::kF32, {live + 1, kVocab}, x);
  const std::vector<int32_t> token_slot(vector_slot.rbegin(), vector_slot.rend());
  RunOp(b, &Ops::adjust_logits,
        {.logits = logits,
         .index = Ints({live + 1}, Backwards(live)),
         .ordinal = Ints({live + 1}, ordinal),
         .token_slot = Ints({live + 2}, token_slot),
         .slots = slots.state(),
         .live = Live(live)});
  EXPECT_TRUE(logits.PoisonedFrom(live));
  std::vector<float> vectors = logits.Floats();
  vectors.resize(live * kVocab);
  return vectors;
}

TEST_P(AdjustLogitsTest, NothingAskedNothingChanged) {
  std::vector<float> x = Normals(2 * kVocab, 1);
  x[3] = NAN;
  x[4] = INFINITY;
  x[5] = -INFINITY;
  TestSlots slots(2, kVocab);
  At<int32_t>(slots.counts, 0, 7) = 4;
  At<uint8_t>(slots.in_prompt, 1, 8) = 1;
  At<int32_t>(slots.stop_tokens, 0, 1) = 9;  // but no minimum is unmet
  ExpectSameBits(RunVectors(GetParam(), slots, x, {1, 0}), x);
  EXPECT_TRUE(RunVectors(GetParam(), slots, {}, {}).empty());
}

// Each in turn, then all, in the order of request/params.h.
TEST_P(AdjustLogitsTest, EachInItsPlace) {
  TestSlots slots(3, kVocab);
  At<int32_t>(slots.bias_ids, 1, 0) = 10;
  At<float>(slots.bias_values, 1, 0) = -3;
  At<int32_t>(slots.bias_ids, 1, 1) = 299;
  At<float>(slots.bias_values, 1, 1) = 100;
  At<int32_t>(slots.bias_ids, 1, 2) = 10;  // twice: both count
  At<float>(slots.bias_values, 1, 2) = -1;
  At<float>(slots.repetition, 1) = 2;
  At<float>(slots.frequency, 1) = 0.25f;
  At<float>(slots.presence, 1) = 0.5f;
  At<int32_t>(slots.counts, 1, 10) = 3;
  At<int32_t>(slots.counts, 1, 11) = 1;
  At<uint8_t>(slots.in_prompt, 1, 11) = 1;
  At<uint8_t>(slots.in_prompt, 1, 12) = 1;
  At<uint8_t>(slots.in_prompt, 1, 13) = 1;
  At<int32_t>(slots.min_tokens, 1) = 5;
  At<int32_t>(slots.generated, 1) = 4;
  At<int32_t>(slots.stop_tokens, 1, 0) = 20;
  At<int32_t>(slots.stop_tokens, 1, 1) = 0;
  std::vector<float> x(kVocab, 1), expected(kVocab, 1);
  x[12] = expected[12] = -4;
  expected[10] = (1.0f - 4) * 2 - 3 * 0.25f - 0.5f;  // biased below zero, so multiplied
  expected[11] = 1.0f / 2 - 0.25f - 0.5f;
  expected[12] = -4 * 2;
  expected[13] = 0.5f;
  expected[299] = 101;
  expected[20] = expected[0] = -INFINITY;
  ExpectSameBits(RunVectors(GetParam(), slots, x, {1}), expected);
  At<int32_t>(slots.generated, 1) = 5;
  expected[20] = expected[0] = 1;
  ExpectSameBits(RunVectors(GetParam(), slots, x, {1}), expected);
  // Other slots ask for nothing.
  ExpectSameBits(RunVectors(GetParam(), slots, x, {2}), x);
}

// After all else, and of its slot alone; a mask that is not in use says nothing.
TEST_P(AdjustLogitsTest, AMaskLeavesWhatItAllows) {
  TestSlots slots(3, kVocab);
  const std::vector<float> x = Normals(3 * kVocab, 7, 10);
  for (int64_t word = 0; word < slots.mask.view().dim(1); ++word) {
    At<int32_t>(slots.mask, 1, word) = word % 3 == 0 ? -1 : static_cast<int32_t>(0x80000001u);
  }
  ExpectSameBits(RunVectors(GetParam(), slots, x, {0, 1, 2}), x);
  At<int32_t>(slots.masked, 1) = 1;
  At<int32_t>(slots.bias_ids, 1, 0) = 40;  // forbidden all the same
  At<float>(slots.bias_values, 1, 0) = 100;
  At<int32_t>(slots.stop_tokens, 1, 0) = 299;  // banned, though allowed
  At<int32_t>(slots.min_tokens, 1) = 1;
  std::vector<float> expected = x;
  for (int v = 0; v < kVocab; ++v) {
    const bool allowed = v / 32 % 3 == 0 || v % 32 == 0 || v % 32 == 31;
    if (!allowed || v == 299) expected[kVocab + v] = -INFINITY;
  }
  EXPECT_EQ(expected[kVocab + 40], -INFINITY);
  ExpectSameBits(RunVectors(GetParam(), slots, x, {0, 1, 2}), expected);
}

// Behind each draft what its own mask allows, and not what the last token's does.
TEST_P(AdjustLogitsTest, EachDraftHasItsMask) {
  constexpr int64_t kWords = (kVocab + 31) / 32;
  TestSlots slots(2, kVocab);
  At<int32_t>(slots.masked, 1) = 1;
  for (int64_t ordinal = 0; ordinal < 4; ++ordinal) {
    for (int64_t word = 0; word < kWords; ++word) {
      At<int32_t>(slots.mask, 1, ordinal * kWords + word) = 1 << (ordinal + word);
    }
  }
  const std::vector<float> x = Normals(5 * kVocab, 8, 10);
  std::vector<float> expected = x;
  for (int64_t vector = 0; vector < 4; ++vector) {
    const int64_t ordinal = 3 - vector;
    for (int v = 0; v < kVocab; ++v) {
      if (v % 32 != (ordinal + v / 32) % 32) expected[vector * kVocab + v] = -INFINITY;
    }
  }
  ExpectSameBits(RunVectors(GetParam(), slots, x, {1, 1, 1, 1, 0}, {3, 2, 1, 0, 2}), expected);
}

TEST_P(AdjustLogitsTest, NegativePenaltiesEncourage) {
  TestSlots slots(1, kVocab);
  At<float>(slots.frequency, 0) = -1;
  At<float>(slots.presence, 0) = -2;
  At<int32_t>(slots.counts, 0, 299) = 2;
  std::vector<float> expected(kVocab);
  expected[299] = 4;
  ExpectSameBits(RunVectors(GetParam(), slots, std::vector<float>(kVocab), {0}), expected);
}

TEST_P(AdjustLogitsTest, AsTheOracleAndAlone) {
  TestSlots slots(33, kVocab);
  Rng rng(5);
  for (int s = 0; s < 33; ++s) {
    At<float>(slots.repetition, s) = 0.5f + rng.Uniform();
    At<float>(slots.frequency, s) = rng.Normal();
    At<float>(slots.presence, s) = rng.Normal();
    At<int32_t>(slots.min_tokens, s) = rng.Below(3);
    At<int32_t>(slots.generated, s) = rng.Below(3);
    for (int i = 0; i < 3; ++i) At<int32_t>(slots.stop_tokens, s, i) = rng.Below(kVocab);
    for (int i = 0; i < 4; ++i) {
      At<int32_t>(slots.bias_ids, s, i) = rng.Below(kVocab);
      At<float>(slots.bias_values, s, i) = rng.Normal();
    }
    for (int v = 0; v < kVocab; ++v) {
      At<int32_t>(slots.counts, s, v) = rng.Below(8) < 6 ? 0 : rng.Below(20);
      At<uint8_t>(slots.in_prompt, s, v) = rng.Below(2);
    }
  }
  const std::vector<float> x = Normals(33 * kVocab, 6, 10);
  const auto run = [&](const TestBackend& b, const std::vector<int>& vectors) {
    return RunVectors(b, slots, PickVectors(x, kVocab, vectors), {vectors.begin(), vectors.end()});
  };
  ExpectAsOracle(GetParam(), 1e-6, [&](const TestBackend& b) { return run(b, Range(33)); });
  ExpectTokenInvariance(33, kVocab,
                        [&](const std::vector<int>& vectors) { return run(GetParam(), vectors); });
}

// Slots as they were before a decode, and as they are once its first `come` drafts were generated.
TestSlots OneByOne(int come) {
  TestSlots slots(2, kVocab);
  At<float>(slots.repetition, 1) = 1.25f;
  At<float>(slots.frequency, 1) = 0.375f;
  At<float>(slots.presence, 1) = -0.5f;
  At<int32_t>(slots.min_tokens, 1) = 7;
  At<int32_t>(slots.generated, 1) = 5 + come;
  At<int32_t>(slots.stop_tokens, 1, 0) = 20;
  At<uint8_t>(slots.in_prompt, 1, 12) = 1;
  At<int32_t>(slots.counts, 1, 11) = 2;
  constexpr int32_t kDrafts[] = {11, 299, 11};  // counted before, new, and twice
  for (int i = 0; i < 3; ++i) At<int32_t>(slots.drafts, 1, i) = kDrafts[i];
  for (int i = 0; i < come; ++i) ++At<int32_t>(slots.counts, 1, kDrafts[i]);
  return slots;
}

// Vectors of a row of 1 + k tokens are those of rows of one token, one by one; other slots' vectors
// stand between them.
TEST_P(AdjustLogitsTest, DraftsBeforeAVectorAreAsGenerated) {
  const std::vector<float> x = Normals(kVocab, 9, 10);
  std::vector<std::vector<float>> one_by_one;
  for (int k = 0; k <= 3; ++k) {
    one_by_one.push_back(RunVectors(GetParam(), OneByOne(k), x, {1}));
    for (int j = 0; j < k; ++j) EXPECT_NE(one_by_one[k], one_by_one[j]);  // or nothing is shown
    // The ban falls with the seventh token.
    EXPECT_EQ(std::isinf(one_by_one[k][20]), k < 2) << k;
  }
  for (int k = 0; k <= 3; ++k) {
    std::vector<float> row, expected;
    std::vector<int32_t> slots, ordinals;
    const auto add = [&](int32_t slot, int32_t ordinal, const std::vector<float>& vector) {
      row.insert(row.end(), x.begin(), x.end());
      expected.insert(expected.end(), vector.begin(), vector.end());
      slots.push_back(slot);
      ordinals.push_back(ordinal);
    };
    for (int ordinal = 0; ordinal <= k; ++ordinal) add(1, ordinal, one_by_one[ordinal]);
    add(0, 0, x);
    ExpectSameBits(RunVectors(GetParam(), OneByOne(0), row, slots, ordinals), expected);
    if (k == 0) continue;
    // The canary: vectors that are adjusted as if each were its row's first are noticed.
    EXPECT_NE(RunVectors(GetParam(), OneByOne(0), row, slots), expected);
  }
}

// Each penalty alone counts a draft, and the ban does.
TEST_P(AdjustLogitsTest, EachPenaltyCountsADraft) {
  const auto adjusted = [&](const std::function<void(TestSlots&)>& ask) {
    TestSlots slots(1, kVocab);
    At<int32_t>(slots.drafts, 0, 0) = 299;
    At<int32_t>(slots.drafts, 0, 1) = 299;
    At<int32_t>(slots.drafts, 0, 2) = 5;  // behind the vector: not yet there
    ask(slots);
    return RunVectors(GetParam(), slots, std::vector<float>(kVocab, 2), {0}, {2});
  };
  std::vector<float> expected(kVocab, 2);
  ExpectSameBits(adjusted([](TestSlots&) {}), expected);
  expected[299] = 1;
  ExpectSameBits(adjusted([](TestSlots& s) { At<float>(s.repetition, 0) = 2; }), expected);
  ExpectSameBits(adjusted([](TestSlots& s) { At<float>(s.frequency, 0) = 0.5f; }), expected);
  ExpectSameBits(adjusted([](TestSlots& s) { At<float>(s.presence, 0) = 1; }), expected);
  const auto ban = [](int32_t min_tokens) {
    return [min_tokens](TestSlots& s) {
      At<int32_t>(s.stop_tokens, 0, 0) = 4;
      At<int32_t>(s.generated, 0) = 10;
      At<int32_t>(s.min_tokens, 0) = min_tokens;
    };
  };
  expected[299] = 2;
  ExpectSameBits(adjusted(ban(12)), expected);
  expected[4] = -INFINITY;
  ExpectSameBits(adjusted(ban(13)), expected);
}

}  // namespace
}  // namespace fathom
