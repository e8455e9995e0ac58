#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(CommitTest);

constexpr int kVocab = 10;

// Rows: slot 2 decodes and samples; slot 0's chunk ends inside the prompt; slot 1's chunk is the
// prompt's last and its row failed; slot 3 samples.
TestSlots RunRows(const Backend& b, int rows) {
  TestSlots slots(5, kVocab);
  for (int s = 0; s < 5; ++s) {
    At<int32_t>(slots.last_token, s) = s;
    At<int32_t>(slots.length, s) = 64;
    At<int32_t>(slots.generated, s) = 10 * s;
    At<int32_t>(slots.counts, s, 7) = s;
  }
  const std::vector<int32_t> row_slot = {2, 0, 1, 3}, row_begin = {0, 1, 4, 6, 7};
  const std::vector<int32_t> positions = {64, 128, 129, 130, 62, 63, 200};
  const std::vector<int32_t> sampled_index = {1, -1, 0, 2};
  RunOp(b, &Ops::commit,
        {.row_slot = Ints({6}, {row_slot.begin(), row_slot.begin() + rows}),
         .row_begin = Ints({7}, {row_begin.begin(), row_begin.begin() + rows + 1}),
         .positions = Ints({9}, {positions.begin(), positions.begin() + row_begin[rows]}),
         .sampled_index = Ints({6}, {sampled_index.begin(), sampled_index.begin() + rows}),
         .sampled_tokens = Ints({4}, {-1, 7, 9}),
         .live_rows = Live(rows),
         .slots = slots.state()});
  return slots;
}

TEST_P(CommitTest, AdvancesSlots) {
  const TestSlots all = RunRows(GetParam(), 4);
  EXPECT_EQ(all.length.Ints(), (std::vector<int32_t>{131, 64, 65, 201, 64}));
  EXPECT_EQ(all.last_token.Ints(), (std::vector<int32_t>{0, 1, 7, 9, 4}));
  EXPECT_EQ(all.generated.Ints(), (std::vector<int32_t>{0, 10, 21, 31, 40}));
  for (int s = 0; s < 5; ++s) {
    for (int v = 0; v < kVocab; ++v) {
      const int before = v == 7 ? s : 0, drawn = (s == 2 && v == 7) || (s == 3 && v == 9);
      EXPECT_EQ(At<int32_t>(all.counts, s, v), before + drawn);
    }
  }
}

TEST_P(CommitTest, OnlyLiveRows) {
  EXPECT_EQ(RunRows(GetParam(), 1).length.Ints(), (std::vector<int32_t>{64, 64, 65, 64, 64}));
  const TestSlots none = RunRows(GetParam(), 0);
  EXPECT_EQ(none.length.Ints(), (std::vector<int32_t>{64, 64, 64, 64, 64}));
  EXPECT_EQ(none.last_token.Ints(), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace fathom
