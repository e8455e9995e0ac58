#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(AddDraftTest);

// Slots 3, 0 and 2 get a draft behind `drafts` others; slot 1 is none of the live rows.
struct Added {
  Added(const TestBackend& b, int drafts, int live) : slots(4, 20) {
    for (int s = 0; s < 4; ++s) {
      At<int32_t>(slots.length, s) = 5 + s;
      At<int32_t>(slots.num_drafts, s) = drafts;
      for (int i = 0; i < 3; ++i) At<int32_t>(slots.drafts, s, i) = 9;
    }
    At<int32_t>(slots.final_length, 2) = 9;  // position 7, its slot's length, is the last computed
    RunOp(b, &Ops::add_draft,
          {.draft_slot = Ints({4}, {3, 0, 2, 1}),
           .likeliest = Ints({4}, {13, 10, 12, 11}),
           .live = Live(live),
           .drafts = drafts,
           .slots = slots.state(),
           .positions = positions});
  }
  std::vector<int32_t> Drafts(int slot) const {
    return {At<int32_t>(slots.drafts, slot, 0), At<int32_t>(slots.drafts, slot, 1),
            At<int32_t>(slots.drafts, slot, 2)};
  }

  const TestSlots slots;
  const TestTensor positions = Ints({4}, {-7, -7, -7, -7});
};

TEST_P(AddDraftTest, BehindThoseThatThereAre) {
  for (int drafts = 0; drafts < 3; ++drafts) {
    const Added added(GetParam(), drafts, 3);
    for (int slot : {0, 2, 3}) {
      std::vector<int32_t> expected(3, 9);
      expected[static_cast<size_t>(drafts)] = 10 + slot;
      EXPECT_EQ(added.Drafts(slot), expected);
    }
    EXPECT_EQ(added.Drafts(1), std::vector<int32_t>(3, 9));
    const int n = drafts + 1;
    EXPECT_EQ(added.slots.num_drafts.Ints(), (std::vector<int32_t>{n, drafts, n, n}));
    EXPECT_EQ(added.positions.Ints(), (std::vector<int32_t>{8 + drafts, 5 + drafts, 7, -7}));
  }
}

TEST_P(AddDraftTest, NoLiveRow) {
  const Added added(GetParam(), 1, 0);
  EXPECT_EQ(added.slots.num_drafts.Ints(), std::vector<int32_t>(4, 1));
  EXPECT_EQ(added.positions.Ints(), std::vector<int32_t>(4, -7));
}

}  // namespace
}  // namespace fathom
