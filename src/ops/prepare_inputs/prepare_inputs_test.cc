#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(PrepareInputsTest);

struct Output {
  TestTensor ids{DType::kI32, {12}}, positions{DType::kI32, {12}}, token_slot{DType::kI32, {12}};
  TestTensor live_tokens{DType::kI32, {1}};
};

// Rows: a decode of slot 2, a verification of slot 0 (its last token, then two drafts), a chunk of
// slot 3 at position 128.
Output RunRows(const Backend& b, int rows) {
  TestSlots slots(5, 10);
  At<int32_t>(slots.last_token, 2) = 7;
  At<int32_t>(slots.length, 2) = 64;
  At<int32_t>(slots.last_token, 0) = 9;
  At<int32_t>(slots.length, 0) = 62;
  const std::vector<int32_t> row_slot = {2, 0, 3}, row_begin = {0, 1, 4, 9};
  const std::vector<int32_t> tokens = {-1, -1, 4, 5, 10, 11, 12, 13, 14};
  const std::vector<int32_t> position = {-1, -1, 128};
  Output out;
  RunOp(b, &Ops::prepare_inputs,
        {.row_slot = Ints({4}, {row_slot.begin(), row_slot.begin() + rows}),
         .row_begin = Ints({5}, {row_begin.begin(), row_begin.begin() + rows + 1}),
         .plan_tokens = Ints({12}, {tokens.begin(), tokens.begin() + row_begin[rows]}),
         .plan_position = Ints({4}, {position.begin(), position.begin() + rows}),
         .live_rows = Live(rows),
         .slots = slots.state(),
         .ids = out.ids,
         .positions = out.positions,
         .token_slot = out.token_slot,
         .live_tokens = out.live_tokens});
  return out;
}

TEST_P(PrepareInputsTest, TakesFromPlanAndSlots) {
  const std::vector<int32_t> ids = {7, 9, 4, 5, 10, 11, 12, 13, 14};
  const std::vector<int32_t> positions = {64, 62, 63, 64, 128, 129, 130, 131, 132};
  const std::vector<int32_t> token_slot = {2, 0, 0, 0, 3, 3, 3, 3, 3};
  const std::vector<int> tokens_of_rows = {0, 1, 4, 9};
  for (int rows = 0; rows <= 3; ++rows) {
    const Output out = RunRows(GetParam(), rows);
    const int n = tokens_of_rows[rows];
    EXPECT_EQ(out.live_tokens.Ints()[0], n);
    const auto expect = [n](const TestTensor& got, const std::vector<int32_t>& expected) {
      for (int t = 0; t < n; ++t) EXPECT_EQ(got.Ints()[t], expected[t]);
      EXPECT_TRUE(got.PoisonedFrom(n));
    };
    expect(out.ids, ids);
    expect(out.positions, positions);
    expect(out.token_slot, token_slot);
  }
}

}  // namespace
}  // namespace fathom
