#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(CommitTest);

constexpr int kVocab = 10;

struct Committed {
  TestSlots slots;
  TestTensor count;
};

TestSlots FiveSlots() {
  TestSlots slots(5, kVocab);
  for (int s = 0; s < 5; ++s) {
    At<int32_t>(slots.last_token, s) = s;
    At<int32_t>(slots.length, s) = 64;
    At<int32_t>(slots.generated, s) = 10 * s;
    At<int32_t>(slots.counts, s, 7) = s;
  }
  return slots;
}

// Rows: slot 0's chunk ends inside the prompt; slot 1's chunk is the prompt's last and its row
// failed; slot 2 decodes and samples; slot 3 samples.
Committed RunRows(const TestBackend& b, int rows) {
  Committed out = {FiveSlots(), TestTensor(DType::kI32, {6}, std::vector<float>{3, 2, 1, 1})};
  const std::vector<int32_t> row_slot = {0, 1, 2, 3}, row_begin = {0, 3, 5, 6, 7};
  const std::vector<int32_t> positions = {128, 129, 130, 62, 63, 64, 200};
  const std::vector<int32_t> logit_begin = {0, 0, 1, 2, 3};
  RunOp(b, &Ops::commit,
        {.row_slot = Ints({6}, {row_slot.begin(), row_slot.begin() + rows}),
         .row_begin = Ints({7}, {row_begin.begin(), row_begin.begin() + rows + 1}),
         .positions = Ints({9}, {positions.begin(), positions.begin() + row_begin[rows]}),
         .logit_begin = Ints({7}, {logit_begin.begin(), logit_begin.begin() + rows + 1}),
         .sampled = Ints({4}, {-1, 7, 9}),
         .row_count = out.count,
         .live_rows = Live(rows),
         .slots = out.slots.state()});
  return out;
}

TEST_P(CommitTest, AdvancesSlots) {
  const TestSlots all = RunRows(GetParam(), 4).slots;
  EXPECT_EQ(all.length.Ints(), (std::vector<int32_t>{131, 64, 65, 201, 64}));
  EXPECT_EQ(all.last_token.Ints(), (std::vector<int32_t>{0, 1, 7, 9, 4}));
  EXPECT_EQ(all.generated.Ints(), (std::vector<int32_t>{0, 10, 21, 31, 40}));
  EXPECT_EQ(all.ended.Ints(), (std::vector<int32_t>{0, 1, 0, 0, 0}));
  for (int s = 0; s < 5; ++s) {
    for (int v = 0; v < kVocab; ++v) {
      const int before = v == 7 ? s : 0, drawn = (s == 2 && v == 7) || (s == 3 && v == 9);
      EXPECT_EQ(At<int32_t>(all.counts, s, v), before + drawn);
    }
  }
}

TEST_P(CommitTest, OnlyLiveRows) {
  EXPECT_EQ(RunRows(GetParam(), 1).slots.length.Ints(),
            (std::vector<int32_t>{131, 64, 64, 64, 64}));
  const TestSlots none = RunRows(GetParam(), 0).slots;
  EXPECT_EQ(none.length.Ints(), (std::vector<int32_t>{64, 64, 64, 64, 64}));
  EXPECT_EQ(none.last_token.Ints(), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

// A decode of slot 3 from position 100 on, of `tokens`, of which `count` stand.
Committed Decode(
    const TestBackend& b, const std::vector<int32_t>& sampled, int32_t count,
    const std::function<void(TestSlots&)>& change = [](TestSlots&) {}) {
  const auto tokens = static_cast<int32_t>(sampled.size());
  Committed out = {FiveSlots(),
                   TestTensor(DType::kI32, {1}, std::vector<float>{static_cast<float>(count)})};
  change(out.slots);
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < tokens; ++i) positions.push_back(100 + i);
  RunOp(b, &Ops::commit,
        {.row_slot = Ints({1}, {3}),
         .row_begin = Ints({2}, {0, tokens}),
         .positions = Ints({8}, positions),
         .logit_begin = Ints({2}, {0, tokens}),
         .sampled = Ints({8}, sampled),
         .row_count = out.count,
         .live_rows = Live(1),
         .slots = out.slots.state()});
  return out;
}

// A slot's length may be left short of its row's end.
TEST_P(CommitTest, AsManyTokensAsStand) {
  for (int32_t count = 1; count <= 4; ++count) {
    const std::vector<int32_t> sampled = {5, 6, 5, 8};
    const Committed out = Decode(GetParam(), sampled, count);
    EXPECT_EQ(out.slots.length.Ints()[3], 100 + count);
    EXPECT_EQ(out.slots.last_token.Ints()[3], sampled[count - 1]);
    EXPECT_EQ(out.slots.generated.Ints()[3], 30 + count);
    EXPECT_EQ(At<int32_t>(out.slots.counts, 3, 5), count < 3 ? 1 : 2);
    EXPECT_EQ(At<int32_t>(out.slots.counts, 3, 8), count == 4 ? 1 : 0);
    EXPECT_EQ(out.slots.ended.Ints()[3], 0);
    EXPECT_EQ(out.count.Ints()[0], count);
  }
  const Committed none = Decode(GetParam(), {}, 0);  // the slot had ended
  EXPECT_EQ(none.slots.length.Ints()[3], 64);
  EXPECT_EQ(none.count.Ints()[0], 0);
}

TEST_P(CommitTest, AStopTokenCutsWhatStands) {
  const auto stops_at = [](int32_t token) {
    return [token](TestSlots& slots) { At<int32_t>(slots.stop_tokens, 3, 2) = token; };
  };
  const Committed out = Decode(GetParam(), {5, 6, 5, 8}, 4, stops_at(6));
  EXPECT_EQ(out.slots.ended.Ints(), (std::vector<int32_t>{0, 0, 0, 1, 0}));
  EXPECT_EQ(out.slots.length.Ints()[3], 102);
  EXPECT_EQ(out.slots.last_token.Ints()[3], 6);
  EXPECT_EQ(out.slots.generated.Ints()[3], 32);
  EXPECT_EQ(out.count.Ints()[0], 2);
  EXPECT_EQ(At<int32_t>(out.slots.counts, 3, 8), 0);
  // It must stand itself.
  EXPECT_EQ(Decode(GetParam(), {5, 6, 5, 8}, 1, stops_at(6)).slots.ended.Ints()[3], 0);
  // As the last one it cuts nothing.
  const Committed last = Decode(GetParam(), {5, 6, 5, 8}, 4, stops_at(8));
  EXPECT_EQ(last.slots.ended.Ints()[3], 1);
  EXPECT_EQ(last.count.Ints()[0], 4);
}

TEST_P(CommitTest, StopTokensEndNothingBeforeTheMinimum) {
  const auto change = [](TestSlots& slots) {
    At<int32_t>(slots.stop_tokens, 3, 0) = 6;
    At<int32_t>(slots.min_tokens, 3) = 32;  // 30 are generated
  };
  const Committed out = Decode(GetParam(), {6, 6, 6, 8}, 4, change);
  EXPECT_EQ(out.count.Ints()[0], 3);
  EXPECT_EQ(out.slots.ended.Ints()[3], 1);
}

TEST_P(CommitTest, AFailedSampleCutsWhatStands) {
  const Committed out = Decode(GetParam(), {5, -1, 6}, 3);
  EXPECT_EQ(out.slots.ended.Ints()[3], 1);
  EXPECT_EQ(out.slots.last_token.Ints()[3], 5);
  EXPECT_EQ(out.slots.generated.Ints()[3], 31);
  EXPECT_EQ(out.count.Ints()[0], 2);  // so that the host sees the failure
}

}  // namespace
}  // namespace fathom
