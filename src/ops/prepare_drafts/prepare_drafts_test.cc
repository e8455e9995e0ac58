#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(PrepareDraftsTest);

// Rows: a chunk of slot 4 that does not sample, one of slot 3 that does, then decodes: of slot 2
// with three drafts of which one stands, of slot 0, of which all stand, of slot 1, whose sampling
// failed, and of slot 5, which has no live token.
struct Prepared {
  explicit Prepared(const TestBackend& b, int live = 6) : slots(6, 50) {
    for (int s = 0; s < 6; ++s) {
      At<int32_t>(slots.num_drafts, s) = 2;
      for (int i = 0; i < 40; ++i) At<int32_t>(slots.history, s, i) = 40 + s;
    }
    At<int32_t>(slots.history, 4, 10) = 39;  // what follows the chunk
    At<int32_t>(slots.ended, 1) = At<int32_t>(slots.ended, 5) = 1;
    RunOp(b, &Ops::prepare_drafts,
          {.ids = Ints({12}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
           .positions = Ints({12}, {7, 8, 9, 0, 1, 20, 21, 22, 23, 30, 31, 39}),
           .row_slot = Ints({6}, {4, 3, 2, 0, 1, 5}),
           .row_begin = Ints({7}, {0, 3, 5, 9, 11, 12, 12}),
           .logit_begin = Ints({7}, {0, 0, 1, 5, 7, 8, 8}),
           .sampled = Ints({8}, {20, 21, 22, 23, 24, 25, 26, -1}),
           .row_count = Ints({6}, {3, 2, 2, 2, 1, 0}),
           .live_rows = Live(live),
           .pass_vectors = 2,
           .slots = slots.state(),
           .next_ids = next_ids,
           .draft_slot = draft_slot,
           .draft_index = draft_index,
           .live_drafts = live_drafts,
           .pass_live = pass_live});
  }

  const TestSlots slots;
  const TestTensor next_ids = Ints({12}, std::vector<int32_t>(12, -7)),
                   draft_slot = Ints({6}, std::vector<int32_t>(6, -7)),
                   draft_index = Ints({6}, std::vector<int32_t>(6, -7)), live_drafts = Live(-7),
                   pass_live = Ints({3}, {-7, -7, -7});
};

TEST_P(PrepareDraftsTest, EachTokenBesideTheNext) {
  const Prepared prepared(GetParam());
  EXPECT_EQ(prepared.next_ids.Ints(),
            (std::vector<int32_t>{2, 3, 39, 5, 20, 21, 22, 23, 24, 25, 26, 0}));
}

TEST_P(PrepareDraftsTest, WhoSampledAndGoesOn) {
  const Prepared prepared(GetParam());
  EXPECT_EQ(prepared.draft_slot.Ints(), (std::vector<int32_t>{3, 2, 0, -7, -7, -7}));
  EXPECT_EQ(prepared.draft_index.Ints(), (std::vector<int32_t>{4, 6, 10, -7, -7, -7}));
  EXPECT_EQ(prepared.live_drafts.Ints(), std::vector<int32_t>{3});
  EXPECT_EQ(prepared.pass_live.Ints(), (std::vector<int32_t>{2, 1, 0}));
  EXPECT_EQ(prepared.slots.num_drafts.Ints(), std::vector<int32_t>(6, 0));
}

TEST_P(PrepareDraftsTest, OnlyLiveRows) {
  const Prepared none(GetParam(), 0);
  EXPECT_EQ(none.next_ids.Ints(), std::vector<int32_t>(12, -7));
  EXPECT_EQ(none.live_drafts.Ints(), std::vector<int32_t>{0});
  EXPECT_EQ(none.pass_live.Ints(), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(none.slots.num_drafts.Ints(), std::vector<int32_t>(6, 2));
  const Prepared chunk(GetParam(), 1);
  EXPECT_EQ(chunk.live_drafts.Ints(), std::vector<int32_t>{0});
  EXPECT_EQ(chunk.slots.num_drafts.Ints(), (std::vector<int32_t>{2, 2, 2, 2, 0, 2}));
}

// More rows than a block has threads, each with a draft but for every third.
TEST_P(PrepareDraftsTest, ManyRows) {
  constexpr int kRows = 300;
  const TestSlots slots(kRows, 50);
  std::vector<int32_t> slot(kRows), begin(kRows + 1), draft_slot, ones(kRows, 1);
  for (int r = 0; r < kRows; ++r) {
    slot[static_cast<size_t>(r)] = kRows - 1 - r;
    begin[static_cast<size_t>(r) + 1] = r + 1;
    At<int32_t>(slots.ended, kRows - 1 - r) = r % 3 == 0 ? 1 : 0;
    if (r % 3 != 0) draft_slot.push_back(kRows - 1 - r);
  }
  const TestTensor found = Ints({kRows}, std::vector<int32_t>(kRows, -7)), live = Live(0),
                   passes = Ints({2}, {0, 0});
  RunOp(GetParam(), &Ops::prepare_drafts,
        {.ids = Ints({kRows}, ones),
         .positions = Ints({kRows}, ones),
         .row_slot = Ints({kRows}, slot),
         .row_begin = Ints({kRows + 1}, begin),
         .logit_begin = Ints({kRows + 1}, begin),
         .sampled = Ints({kRows}, ones),
         .row_count = Ints({kRows}, ones),
         .live_rows = Live(kRows),
         .pass_vectors = 256,
         .slots = slots.state(),
         .next_ids = Ints({kRows}, ones),
         .draft_slot = found,
         .draft_index = Ints({kRows}, ones),
         .live_drafts = live,
         .pass_live = passes});
  draft_slot.resize(kRows, -7);
  EXPECT_EQ(found.Ints(), draft_slot);
  EXPECT_EQ(live.Ints(), std::vector<int32_t>{200});
  EXPECT_EQ(passes.Ints(), (std::vector<int32_t>{200, 0}));
}

}  // namespace
}  // namespace fathom
