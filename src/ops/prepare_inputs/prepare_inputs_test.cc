#include "ops/test_slots.h"

namespace fathom {
namespace {

EVERY_BACKEND(PrepareInputsTest);

constexpr int kRows = 6, kTokens = 16, kLogits = 8, kPassVectors = 3, kPasses = 3;

struct Row {
  int32_t slot, begin, capacity, samples;
};

struct Output {
  TestTensor ids{DType::kI32, {kTokens}}, positions{DType::kI32, {kTokens}},
      token_slot{DType::kI32, {kTokens}};
  TestTensor live_tokens{DType::kI32, {1}}, absorbed_live{DType::kI32, {1}};
  TestTensor row_begin{DType::kI32, {kRows + 1}}, row_count{DType::kI32, {kRows}};
  TestTensor logit_begin{DType::kI32, {kRows + 1}}, logit_index{DType::kI32, {kLogits}},
      logit_ordinal{DType::kI32, {kLogits}}, pass_live{DType::kI32, {kPasses}};
};

// The plan's token at place i is 100 + i.
Output RunRows(const TestBackend& b, const TestSlots& slots, const std::vector<Row>& rows,
               int64_t expanded_tokens = 0) {
  std::vector<int32_t> slot, capacity = {0}, begin, samples, tokens;
  for (const Row& row : rows) {
    slot.push_back(row.slot);
    capacity.push_back(capacity.back() + row.capacity);
    begin.push_back(row.begin);
    samples.push_back(row.samples);
  }
  for (int32_t i = 0; i < capacity.back(); ++i) tokens.push_back(100 + i);
  Output out;
  RunOp(b, &Ops::prepare_inputs,
        {.row_slot = Ints({kRows}, slot),
         .row_capacity = Ints({kRows + 1}, capacity),
         .plan_tokens = Ints({kTokens}, tokens),
         .plan_begin = Ints({kRows}, begin),
         .plan_samples = Ints({kRows}, samples),
         .live_rows = Live(static_cast<int32_t>(rows.size())),
         .expanded_tokens = expanded_tokens,
         .pass_vectors = kPassVectors,
         .slots = slots.state(),
         .ids = out.ids,
         .positions = out.positions,
         .token_slot = out.token_slot,
         .live_tokens = out.live_tokens,
         .absorbed_live = out.absorbed_live,
         .row_begin = out.row_begin,
         .row_count = out.row_count,
         .logit_begin = out.logit_begin,
         .logit_index = out.logit_index,
         .logit_ordinal = out.logit_ordinal,
         .pass_live = out.pass_live});
  return out;
}

// What is expected, and nothing behind it.
void Expect(const TestTensor& got, const std::vector<int32_t>& expected) {
  std::vector<int32_t> front = got.Ints();
  front.resize(expected.size());
  EXPECT_EQ(front, expected);
  EXPECT_TRUE(got.PoisonedFrom(static_cast<int64_t>(expected.size())));
}

// Slot 2 decodes at 64; slot 0 has two drafts behind its last token at 62.
TestSlots TwoRunning() {
  TestSlots slots(5, 10);
  At<int32_t>(slots.last_token, 2) = 7;
  At<int32_t>(slots.length, 2) = 64;
  At<int32_t>(slots.last_token, 0) = 9;
  At<int32_t>(slots.length, 0) = 62;
  At<int32_t>(slots.num_drafts, 0) = 2;
  At<int32_t>(slots.drafts, 0, 0) = 4;
  At<int32_t>(slots.drafts, 0, 1) = 5;
  return slots;
}

constexpr Row kChunk = {3, 128, 5, 0}, kLastChunk = {1, 0, 2, 1};
constexpr Row kDecode = {2, -1, 1, 1}, kVerify = {0, -1, 4, 1};

TEST_P(PrepareInputsTest, TakesFromPlanAndSlots) {
  const Output out =
      RunRows(GetParam(), TwoRunning(), {kChunk, kLastChunk, kVerify, kDecode}, /*expanded=*/5);
  Expect(out.ids, {100, 101, 102, 103, 104, 105, 106, 9, 4, 5, 7});
  Expect(out.positions, {128, 129, 130, 131, 132, 0, 1, 62, 63, 64, 64});
  Expect(out.token_slot, {3, 3, 3, 3, 3, 1, 1, 0, 0, 0, 2});
  Expect(out.live_tokens, {11});
  Expect(out.absorbed_live, {6});
  Expect(out.row_begin, {0, 5, 7, 10, 11});
  Expect(out.row_count, {5, 2, 3, 1});
  Expect(out.logit_begin, {0, 0, 1, 4, 5});
  Expect(out.logit_index, {6, 7, 8, 9, 10});
  Expect(out.logit_ordinal, {0, 0, 1, 2, 0});  // of a prompt's last chunk: the first
  Expect(out.pass_live, {3, 2, 0});
}

TEST_P(PrepareInputsTest, WithoutRows) {
  const Output out = RunRows(GetParam(), TwoRunning(), {});
  EXPECT_TRUE(out.ids.PoisonedFrom(0) && out.row_count.PoisonedFrom(0));
  Expect(out.live_tokens, {0});
  Expect(out.absorbed_live, {0});
  Expect(out.row_begin, {0});
  Expect(out.logit_begin, {0});
  Expect(out.pass_live, {0, 0, 0});
}

// A row's live tokens end where its capacity, its drafts, or what it may still generate does; those
// of an ended slot do not begin; what follows moves up.
TEST_P(PrepareInputsTest, LiveTokensAreTheSlots) {
  const auto live = [&](int32_t capacity, int32_t final_length, int32_t ended) {
    TestSlots slots = TwoRunning();
    At<int32_t>(slots.final_length, 0) = final_length;
    At<int32_t>(slots.ended, 0) = ended;
    const Output out = RunRows(GetParam(), slots, {{0, -1, capacity, 1}, kDecode});
    const int32_t tokens = out.row_count.Ints()[0];
    EXPECT_EQ(out.row_begin.Ints()[1], tokens);
    EXPECT_EQ(out.logit_begin.Ints()[1], tokens);
    EXPECT_EQ(out.ids.Ints()[tokens], 7);  // of the row behind it
    EXPECT_EQ(out.live_tokens.Ints()[0], tokens + 1);
    EXPECT_EQ(out.pass_live.Ints()[0], std::min(tokens + 1, kPassVectors));
    return tokens;
  };
  EXPECT_EQ(live(1, 1000, 0), 1);
  EXPECT_EQ(live(2, 1000, 0), 2);
  EXPECT_EQ(live(4, 1000, 0), 3);
  EXPECT_EQ(live(4, 66, 0), 3);  // samples up to position 65
  EXPECT_EQ(live(4, 65, 0), 2);
  EXPECT_EQ(live(4, 64, 0), 1);
  EXPECT_EQ(live(4, 63, 0), 0);
  EXPECT_EQ(live(4, 10, 0), 0);
  EXPECT_EQ(live(4, 1000, 1), 0);
}

// More rows than a block of threads has.
TEST_P(PrepareInputsTest, ManyRows) {
  constexpr int kMany = 400;
  TestSlots slots(kMany, 10);
  std::vector<int32_t> row_slot, capacity = {0}, begin(kMany, -1), samples(kMany, 1), expected;
  for (int s = 0; s < kMany; ++s) {
    row_slot.push_back(kMany - 1 - s);
    capacity.push_back(s + 1);
    At<int32_t>(slots.ended, s) = s % 3 == 0 ? 1 : 0;
    At<int32_t>(slots.last_token, s) = s;
    if ((kMany - 1 - s) % 3 != 0) expected.push_back(kMany - 1 - s);
  }
  const TestTensor ids(DType::kI32, {kMany}), positions(DType::kI32, {kMany}),
      token_slot(DType::kI32, {kMany}), live_tokens(DType::kI32, {1}),
      absorbed_live(DType::kI32, {1}), row_begin(DType::kI32, {kMany + 1}),
      row_count(DType::kI32, {kMany}), logit_begin(DType::kI32, {kMany + 1}),
      logit_index(DType::kI32, {kMany}), logit_ordinal(DType::kI32, {kMany}),
      pass_live(DType::kI32, {4});
  RunOp(GetParam(), &Ops::prepare_inputs,
        {.row_slot = Ints({kMany}, row_slot),
         .row_capacity = Ints({kMany + 1}, capacity),
         .plan_tokens = Ints({kMany}, std::vector<int32_t>(kMany, 0)),
         .plan_begin = Ints({kMany}, begin),
         .plan_samples = Ints({kMany}, samples),
         .live_rows = Live(kMany),
         .pass_vectors = 128,
         .slots = slots.state(),
         .ids = ids,
         .positions = positions,
         .token_slot = token_slot,
         .live_tokens = live_tokens,
         .absorbed_live = absorbed_live,
         .row_begin = row_begin,
         .row_count = row_count,
         .logit_begin = logit_begin,
         .logit_index = logit_index,
         .logit_ordinal = logit_ordinal,
         .pass_live = pass_live});
  const auto live = static_cast<int32_t>(expected.size());
  Expect(ids, expected);
  Expect(token_slot, expected);
  Expect(live_tokens, {live});
  EXPECT_EQ(row_begin.Ints()[kMany], live);
  EXPECT_EQ(logit_begin.Ints()[kMany], live);
  Expect(logit_ordinal, std::vector<int32_t>(expected.size(), 0));
  Expect(pass_live, {128, 128, live - 256, 0});
}

}  // namespace
}  // namespace fathom
