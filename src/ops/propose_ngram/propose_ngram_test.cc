#include <numeric>

#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(ProposeNgramTest);

constexpr int kMostText = 1200;

struct Proposed {
  std::vector<int32_t> drafts;
  std::vector<int32_t> history;
};

// A decode whose drafts' and last token's successors were the last `drawn` tokens of `text`.
Proposed Propose(const TestBackend& b, const std::vector<int32_t>& text, NgramLookup lookup,
                 int drawn = 1, int most_drafts = 3, int rejected = 0) {
  const TestSlots slots(2, 20, 3, 4, most_drafts, kMostText);
  const auto size = static_cast<int32_t>(text.size());
  const int32_t tokens = drawn + rejected;
  for (int32_t i = 0; i < size - drawn; ++i) At<int32_t>(slots.history, 1, i) = text[i];
  At<int32_t>(slots.length, 1) = size - 1;
  At<int32_t>(slots.num_drafts, 1) = most_drafts;
  std::vector<int32_t> positions(static_cast<size_t>(tokens)),
      sampled(text.end() - drawn, text.end());
  std::iota(positions.begin(), positions.end(), size - 1 - drawn);
  sampled.resize(static_cast<size_t>(tokens), 13);
  RunOp(b, &Ops::propose_ngram,
        {.row_slot = Ints({1}, {1}),
         .row_begin = Ints({2}, {0, tokens}),
         .positions = Ints({tokens}, positions),
         .logit_begin = Ints({2}, {0, tokens}),
         .sampled = Ints({tokens}, sampled),
         .row_count = Ints({1}, {drawn}),
         .live_rows = Live(1),
         .lookup = lookup,
         .slots = slots.state()});
  Proposed out;
  for (int i = 0; i < At<int32_t>(slots.num_drafts, 1); ++i) {
    out.drafts.push_back(At<int32_t>(slots.drafts, 1, i));
  }
  for (int i = 0; i < size; ++i) out.history.push_back(At<int32_t>(slots.history, 1, i));
  EXPECT_EQ(out.history, text);
  EXPECT_EQ(At<int32_t>(slots.history, 1, size), -1);
  EXPECT_EQ(At<int32_t>(slots.num_drafts, 0), 0);
  return out;
}

TEST_P(ProposeNgramTest, WhatFollowedTheLongestMatchAndOfThoseTheLast) {
  const TestBackend& b = GetParam();
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(Propose(b, {1, 2, 3, 4, 5, 1, 2}, {2, 4}).drafts, (Tokens{3, 4, 5}));
  EXPECT_EQ(Propose(b, {1, 2, 3, 1, 2, 4, 1, 2}, {2, 4}).drafts, (Tokens{4, 1, 2}));
  // Longer beats later, up to the most that is looked at.
  EXPECT_EQ(Propose(b, {9, 1, 2, 3, 1, 2, 4, 9, 1, 2}, {2, 3}).drafts, (Tokens{3, 1, 2}));
  EXPECT_EQ(Propose(b, {9, 1, 2, 3, 1, 2, 4, 9, 1, 2}, {2, 2}).drafts, (Tokens{4, 9, 1}));
  // Fewer tokens alike than the least, or no text before.
  EXPECT_EQ(Propose(b, {1, 2, 3, 5, 2}, {2, 4}).drafts, Tokens{});
  EXPECT_EQ(Propose(b, {1, 2, 3, 5, 2}, {1, 4}).drafts, (Tokens{3, 5, 2}));
  EXPECT_EQ(Propose(b, {1, 2}, {1, 4}).drafts, Tokens{});
  // As many drafts as there is text, or as the slot has room for.
  EXPECT_EQ(Propose(b, {7, 7}, {1, 4}).drafts, (Tokens{7}));
  EXPECT_EQ(Propose(b, {7, 7, 7, 7}, {1, 4}).drafts, (Tokens{7}));
  EXPECT_EQ(Propose(b, {1, 2, 3, 4, 5, 1, 2}, {2, 4}, 1, 2).drafts, (Tokens{3, 4}));
}

TEST_P(ProposeNgramTest, ARowOfSeveralTokens) {
  const TestBackend& b = GetParam();
  for (int drawn = 1; drawn <= 3; ++drawn) {
    for (int rejected = 0; rejected <= 2; ++rejected) {
      EXPECT_EQ(Propose(b, {1, 2, 3, 4, 5, 1, 2, 3}, {2, 4}, drawn, 5, rejected).drafts,
                (std::vector<int32_t>{4, 5, 1, 2, 3}));
    }
  }
}

// Long texts of few words, where many places match, against a search by hand.
TEST_P(ProposeNgramTest, LongTexts) {
  Rng rng(3);
  for (const int size : {2, 31, 32, 33, 511, 512, 513, 1199}) {
    for (const NgramLookup lookup : {NgramLookup{1, 1}, NgramLookup{3, 5}, NgramLookup{2, 32}}) {
      std::vector<int32_t> text;
      for (int i = 0; i < size; ++i) text.push_back(static_cast<int32_t>(rng.Below(3)));
      std::vector<int32_t> expected;
      for (int32_t n = lookup.most; n >= lookup.least && expected.empty(); --n) {
        for (int at = size - 1; at >= n && expected.empty(); --at) {
          if (!std::equal(text.end() - n, text.end(), text.begin() + at - n)) continue;
          expected.assign(text.begin() + at, text.begin() + std::min(size, at + 3));
        }
      }
      EXPECT_EQ(Propose(GetParam(), text, lookup).drafts, expected) << size;
    }
  }
}

// Of rows that did not sample, and of slots that have ended: no drafts.
TEST_P(ProposeNgramTest, OtherRows) {
  const TestSlots slots(4, 20, 3, 4, 3, kMostText);
  for (int s = 0; s < 4; ++s) {
    for (int i = 0; i < 6; ++i) At<int32_t>(slots.history, s, i) = 7;
    At<int32_t>(slots.length, s) = 5;
    At<int32_t>(slots.num_drafts, s) = 2;
  }
  At<int32_t>(slots.ended, 1) = 1;
  RunOp(GetParam(), &Ops::propose_ngram,
        {.row_slot = Ints({4}, {0, 1, 2, 3}),
         .row_begin = Ints({5}, {0, 3, 4, 4, 5}),
         .positions = Ints({5}, {3, 4, 5, 4, 4}),
         .logit_begin = Ints({5}, {0, 0, 1, 1, 2}),
         .sampled = Ints({2}, {7, 7}),
         .row_count = Ints({4}, {3, 1, 0, 1}),
         .live_rows = Live(3),
         .lookup = {1, 2},
         .slots = slots.state()});
  EXPECT_EQ(slots.num_drafts.Ints(), (std::vector<int32_t>{0, 0, 0, 2}));
}

}  // namespace
}  // namespace fathom
