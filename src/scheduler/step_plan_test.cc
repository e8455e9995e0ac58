#include "scheduler/step_plan.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fathom {
namespace {

StepPlan SomePlan() {
  StepRow decode;
  decode.slot = SlotId{3};
  decode.request = RequestId{~uint64_t{0}};
  decode.position = 2147483646;
  decode.num_tokens = 1;
  decode.first_new_page = 7;
  decode.new_pages = {PageId{2147483647}};
  decode.samples = true;
  StepRow prefill;
  prefill.position = 512;
  prefill.num_tokens = 3;
  prefill.tokens = {TokenId{0}, TokenId{128}, TokenId{129279}};
  prefill.prompt_logprobs = true;
  return {.step = ~uint64_t{0} - 1, .rows = {decode, prefill}};
}

TEST(StepPlan, RoundTrip) {
  for (const StepPlan& plan : {SomePlan(), StepPlan{.step = 5, .rows = {}}}) {
    const Result<StepPlan> parsed = ParseStepPlan(Serialize(plan));
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ(*parsed, plan);
  }
}

TEST(StepPlan, EveryTruncationIsRefused) {
  const std::string bytes = Serialize(SomePlan());
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of its own, so that a sanitizer sees a read beyond it.
    const std::vector<char> part(bytes.begin(), bytes.begin() + size);
    EXPECT_FALSE(ParseStepPlan({part.data(), part.size()}).ok()) << size;
  }
  EXPECT_FALSE(ParseStepPlan(bytes + '\0').ok());
}

// What random damage leaves parseable is a plan: it survives a round trip.
TEST(StepPlan, DamageIsRefusedOrAnotherPlan) {
  const std::string bytes = Serialize(SomePlan());
  Rng rng(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = bytes;
    for (uint32_t n = 1 + rng.Below(3); n > 0; --n) {
      damaged[rng.Below(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(rng.Next());
    }
    const Result<StepPlan> parsed = ParseStepPlan(damaged);
    if (parsed.ok()) {
      EXPECT_EQ(ParseStepPlan(Serialize(*parsed)).value(), *parsed);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(StepPlan, SizesThatAreNotThereAreRefusedBeforeAllocating) {
  // An array of 2^32 - 1 rows, and none follows.
  const std::string bytes("\x92\x01\xdd\xff\xff\xff\xff", 7);
  EXPECT_EQ(ParseStepPlan(bytes).status().code(), StatusCode::kDataLoss);
}

TEST(StepPlan, RowsThatContradictThemselvesAreRefused) {
  const auto refused = [](auto damage) {
    StepPlan plan = SomePlan();
    damage(plan.rows[1]);
    return !ParseStepPlan(Serialize(plan)).ok();
  };
  EXPECT_FALSE(refused([](StepRow&) {}));
  EXPECT_TRUE(refused([](StepRow& row) { row.num_tokens = 2; }));
  EXPECT_TRUE(refused([](StepRow& row) { row.num_tokens = 0; }));
  EXPECT_TRUE(refused([](StepRow& row) { row.tokens.push_back(TokenId{1}); }));
  EXPECT_TRUE(refused([](StepRow& row) { row.position = 2147483647; }));
}

}  // namespace
}  // namespace fathom
