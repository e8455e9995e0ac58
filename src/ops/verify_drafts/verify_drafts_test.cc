#include <numeric>

#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(VerifyDraftsTest);

// Rows: a chunk that does not sample, one that does, then decodes of slots 2, 0 and 1 with three
// drafts, one and none; the last slot has ended.
struct Rows {
  std::vector<int32_t> slot = {4, 3, 2, 0, 1, 5};
  std::vector<int32_t> logit_begin = {0, 0, 1, 5, 7, 8, 8};
  std::vector<int32_t> count = {9, 7, 4, 2, 1, 0};
};

std::vector<int32_t> Verify(const TestBackend& b, const std::vector<int32_t>& sampled, int live,
                            double synthetic_acceptance = -1) {
  const TestSlots slots(6, 20);
  for (int i = 0; i < 3; ++i) {
    At<int32_t>(slots.drafts, 2, i) = 10 + i;
    At<int32_t>(slots.drafts, 0, i) = 5;
    At<int32_t>(slots.drafts, 3, i) = 7;
  }
  const Rows rows;
  const TestTensor count(DType::kI32, {6}, {rows.count.begin(), rows.count.end()});
  RunOp(b, &Ops::verify_drafts,
        {.row_slot = Ints({6}, rows.slot),
         .logit_begin = Ints({7}, rows.logit_begin),
         .sampled = Ints({8}, sampled),
         .row_count = count,
         .live_rows = Live(live),
         .slots = slots.state(),
         .synthetic_acceptance = synthetic_acceptance});
  return count.Ints();
}

TEST_P(VerifyDraftsTest, WhatWasDrawnStandsUpToTheFirstOther) {
  const auto stand = [&](const std::vector<int32_t>& of_decodes) {
    std::vector<int32_t> sampled = {7};
    sampled.insert(sampled.end(), of_decodes.begin(), of_decodes.end());
    return Verify(GetParam(), sampled, 6);
  };
  EXPECT_EQ(stand({10, 11, 12, 13, 5, 6, 1}), (std::vector<int32_t>{9, 7, 4, 2, 1, 0}));
  EXPECT_EQ(stand({10, 11, 9, 12, 6, 5, 1}), (std::vector<int32_t>{9, 7, 3, 1, 1, 0}));
  EXPECT_EQ(stand({11, 11, 12, 13, 5, 5, 1}), (std::vector<int32_t>{9, 7, 1, 2, 1, 0}));
  // Where sampling failed, nothing stands behind.
  EXPECT_EQ(stand({10, -1, 12, 13, -1, 5, -1}), (std::vector<int32_t>{9, 7, 2, 1, 1, 0}));
}

// Of a benchmark: so many stand, by chance, whatever was drawn; where sampling failed, none does.
TEST_P(VerifyDraftsTest, AShareOfAll) {
  const std::vector<int32_t> others(8, 19);
  EXPECT_EQ(Verify(GetParam(), others, 6, 1), Rows().count);
  EXPECT_EQ(Verify(GetParam(), others, 6, 0), (std::vector<int32_t>{9, 7, 1, 1, 1, 0}));
  EXPECT_EQ(Verify(GetParam(), std::vector<int32_t>(8, -1), 6, 1),
            (std::vector<int32_t>{9, 7, 1, 1, 1, 0}));
  const TestSlots slots(400, 20, 3, 4, 1);
  std::vector<int32_t> slot(400), logits(401), count(400, 2);
  for (int r = 0; r < 400; ++r) {
    slot[static_cast<size_t>(r)] = r;
    logits[static_cast<size_t>(r) + 1] = 2 * r + 2;
    At<int32_t>(slots.length, r) = 10 * r;
  }
  const TestTensor counts = Ints({400}, count);
  RunOp(GetParam(), &Ops::verify_drafts,
        {.row_slot = Ints({400}, slot),
         .logit_begin = Ints({401}, logits),
         .sampled = Ints({800}, std::vector<int32_t>(800, 3)),
         .row_count = counts,
         .live_rows = Live(400),
         .slots = slots.state(),
         .synthetic_acceptance = 0.8});
  const std::vector<int32_t> stood = counts.Ints();
  EXPECT_NEAR(std::accumulate(stood.begin(), stood.end(), 0) - 400, 320, 30);
}

TEST_P(VerifyDraftsTest, OnlyLiveRows) {
  const std::vector<int32_t> none(8, 0);
  EXPECT_EQ(Verify(GetParam(), none, 0), Rows().count);
  EXPECT_EQ(Verify(GetParam(), none, 3), (std::vector<int32_t>{9, 7, 1, 2, 1, 0}));
}

}  // namespace
}  // namespace fathom
