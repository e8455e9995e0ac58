#include "scheduler/step_masks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace fathom {
namespace {

// Three words, the last of them half full.
constexpr SlotMaskRoom kRoom = {.vocab = 70, .max_drafts = 2};

// Masked: the end of a prompt, a decode of two drafts, and one whose request has ended.
StepPlan SomePlan() {
  const StepRow prompt{.begin = 0, .tokens = {TokenId{5}}, .samples = true, .masked = true};
  const StepRow decode{.drafts = 2, .samples = true, .masked = true};
  const StepRow free{.samples = true};
  return {.step = 300, .rows = {prompt, free, decode, decode}};
}

StepMasks SomeMasks() {
  return {.step = 300, .masks = {{1, 2, 3}, {4, 5, 6, 0xffffffff, 0x80000000, 63}, {}}};
}

Result<StepMasks> Parse(const std::string& bytes) {
  // A copy of its own, so that a sanitizer sees a read beyond it.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  return ParseStepMasks({copy.data(), copy.size()}, SomePlan(), kRoom);
}

TEST(StepMasks, RoundTrip) {
  const Result<StepMasks> parsed = Parse(Serialize(SomeMasks()));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->step, 300u);
  EXPECT_EQ(parsed->masks, SomeMasks().masks);
  const Result<StepMasks> none =
      ParseStepMasks(Serialize(StepMasks{.step = 7}), {.step = 7}, kRoom);
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_TRUE(none->masks.empty());
}

// A request that lost its slot comes back as a prefill, and its masks still follow its drafts; and
// fewer drafts may be verified than were proposed.
TEST(StepMasks, MayBeMoreThanARowHasDrafts) {
  StepMasks masks = SomeMasks();
  for (auto& words : masks.masks) words.assign(9, 5);
  const Result<StepMasks> parsed = Parse(Serialize(masks));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->masks, masks.masks);
}

TEST(StepMasks, OfAnotherPlanAreRefused) {
  const auto refusal = [](const StepMasks& masks) {
    const Result<StepMasks> parsed = Parse(Serialize(masks));
    EXPECT_FALSE(parsed.ok());
    return parsed.ok() ? std::string() : parsed.status().message();
  };
  StepMasks masks = SomeMasks();
  masks.step = 301;
  EXPECT_EQ(refusal(masks), "step masks: of step 301, and the plan is of step 300");
  masks = SomeMasks();
  masks.masks.pop_back();
  EXPECT_EQ(refusal(masks), "step masks: of 2 rows, and 3 are masked");
  masks.masks.resize(4);
  EXPECT_EQ(refusal(masks), "step masks: of 4 rows, and 3 are masked");
  masks = SomeMasks();
  masks.masks[1].pop_back();
  EXPECT_EQ(refusal(masks), "step masks: 20 bytes of a row, not a multiple of 12");
  masks = SomeMasks();
  masks.masks[1].resize(12);
  EXPECT_EQ(refusal(masks), "step masks: 4 masks of a row, at most 3");
}

TEST(StepMasks, EveryTruncationIsRefused) {
  const std::string bytes = Serialize(SomeMasks());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result<StepMasks> parsed = Parse(bytes.substr(0, size));
    ASSERT_FALSE(parsed.ok()) << size;
    EXPECT_EQ(parsed.status().code(), StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(Parse(bytes + '\0').status().message(), "step masks: bytes after their end");
}

TEST(StepMasks, SizesThatAreNotThereAreRefusedBeforeAllocating) {
  const std::string head = {'\x92', '\xcd', '\x01', '\x2c', '\x93'};  // step 300, three rows
  EXPECT_EQ(Parse(head + "\xc6\xff\xff\xff\xff").status().message(),
            "step masks: 4294967295 bytes, 0 left");
  const std::string rows = {'\x92', '\xcd', '\x01', '\x2c', '\xdd', '\xff', '\xff', '\xff', '\xff'};
  EXPECT_EQ(Parse(rows).status().message(), "step masks: array of 4294967295 items");
}

// What random damage leaves parseable are masks that fit the plan, and go round.
TEST(StepMasks, DamageIsRefusedOrOtherMasks) {
  const std::string bytes = Serialize(SomeMasks());
  Rng rng(1);
  int refused = 0, read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = bytes;
    for (uint32_t n = 1 + rng.Below(3); n > 0; --n) {
      damaged[rng.Below(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(rng.Next());
    }
    const Result<StepMasks> parsed = Parse(damaged);
    ++(parsed.ok() ? read : refused);
    if (parsed.ok()) {
      const Result<StepMasks> again = Parse(Serialize(*parsed));
      ASSERT_TRUE(again.ok());
      EXPECT_EQ(again->masks, parsed->masks);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace fathom
