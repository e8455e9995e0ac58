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

std::vector<int32_t> Verify(const TestBackend& b, const std::vector<int32_t>& sampled, int live) {
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
         .slots = slots.state()});
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

TEST_P(VerifyDraftsTest, OnlyLiveRows) {
  const std::vector<int32_t> none(8, 0);
  EXPECT_EQ(Verify(GetParam(), none, 0), Rows().count);
  EXPECT_EQ(Verify(GetParam(), none, 3), (std::vector<int32_t>{9, 7, 1, 2, 1, 0}));
}

}  // namespace
}  // namespace fathom
