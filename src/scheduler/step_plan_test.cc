#include "scheduler/step_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "base/rng.h"

namespace fathom {
namespace {

SlotOpening SomeOpening() {
  RequestParams params;
  params.prompt = {TokenId{0}, TokenId{128}, TokenId{129279}, TokenId{2147483647}};
  params.sampling = {.temperature = 0.7f,
                     .top_k = 40,
                     .top_p = 0.95f,
                     .min_p = 1e-40f,  // a subnormal is a number
                     .presence_penalty = -2.0f,
                     .frequency_penalty = -0.0f,
                     .repetition_penalty = 3.4e38f,
                     .seed = ~uint64_t{0},
                     .logprobs = 20,
                     .logprob_token_ids = {TokenId{9}, TokenId{2147483647}},
                     .logit_bias = {{TokenId{7}, -100.0f}, {TokenId{0}, 100.0f}}};
  params.stop_tokens = {TokenId{1}, TokenId{2147483647}};
  params.max_tokens = 2147483647;
  params.min_tokens = 3;
  params.prompt_logprobs = 0;
  params.masked = true;
  return {.slot = SlotId{5},
          .request = RequestId{1},
          .params = std::make_shared<const RequestParams>(params),
          .generated = {TokenId{9}, TokenId{1000}},
          .length = 64,
          .final_length = 2147483647};
}

// As a scheduler of one group gives it its shape.
StepPlan WithShape(StepPlan plan) {
  plan.shape = {};
  Widen(plan.shape, plan, /*logprobs=*/true);
  return plan;
}

// Two openings, a row of known tokens, a decode with drafts and one with a mask.
StepPlan SomePlan() {
  SlotOpening second = SomeOpening();
  second.slot = SlotId{0};
  second.params = std::make_shared<const RequestParams>();
  StepRow known;
  known.form = AttentionForm::kExpanded;
  known.begin = 512;
  known.tokens = {TokenId{0}, TokenId{128}, TokenId{129279}};
  known.prompt_logprobs = true;
  StepRow decode;
  decode.slot = SlotId{3};
  decode.request = RequestId{~uint64_t{0}};
  decode.drafts = 4;
  decode.first_new_page = 7;
  decode.new_pages = {PageId{2147483647}};
  decode.samples = true;
  const StepRow masked{.samples = true, .masked = true};
  return WithShape({.step = ~uint64_t{0} - 1,
                    .openings = {SomeOpening(), second},
                    .rows = {known, decode, masked}});
}

TEST(StepPlan, RoundTrip) {
  for (const StepPlan& plan : {SomePlan(), StepPlan{.step = 5, .openings = {}, .rows = {}}}) {
    const Result<StepPlan> parsed = ParseStepPlan(Serialize(plan));
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ(*parsed, plan);
  }
}

// Else the fuzzer begins with what is refused at once.
TEST(StepPlan, SeedsOfTheFuzzerAreOfTodaysForm) {
  size_t seeds = 0;
  for (const auto& seed : std::filesystem::directory_iterator("tests/fuzz/corpus/step_plan")) {
    std::ifstream file(seed.path(), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    EXPECT_TRUE(ParseStepPlan(bytes).ok()) << seed.path();
    ++seeds;
  }
  EXPECT_EQ(seeds, 3u);
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
  // An array of 2^32 - 1 openings, or rows, and none follows.
  const std::string none = Serialize(StepPlan());
  for (const size_t arrays : {2, 1}) {
    const std::string bytes = none.substr(0, none.size() - arrays) + "\xdd\xff\xff\xff\xff";
    EXPECT_EQ(ParseStepPlan(bytes).status().message(), "step plan: array of 4294967295 items");
  }
}

TEST(StepPlan, MoreRowsThanAnyStepHasAreRefused) {
  const auto parses = [](size_t openings, size_t rows) {
    StepPlan plan;
    StepRow row;
    row.samples = true;
    plan.rows.assign(rows, row);
    SlotOpening opening;
    opening.params = std::make_shared<const RequestParams>();
    plan.openings.assign(openings, opening);
    return ParseStepPlan(Serialize(WithShape(plan))).ok();
  };
  EXPECT_TRUE(parses(kMaxStepRows, kMaxStepRows));
  EXPECT_FALSE(parses(kMaxStepRows + 1, 1));
  EXPECT_FALSE(parses(1, kMaxStepRows + 1));
}

TEST(StepPlan, MoreBytesThanAnyStepHasAreRefused) {
  std::string bytes = Serialize(SomePlan());
  bytes.resize(kMaxStepPlanBytes);
  EXPECT_EQ(ParseStepPlan(bytes).status().message(), "step plan: bytes after its end");
  bytes.push_back('\0');
  EXPECT_NE(ParseStepPlan(bytes).status().message().find("at most"), std::string::npos);
}

TEST(StepPlan, RowsThatContradictThemselvesAreRefused) {
  const auto refused = [](size_t row, auto damage) {
    StepPlan plan = SomePlan();
    damage(plan.rows[row]);
    plan.shape.tokens = plan.shape.logit_vectors = 2147483647;  // it holds whatever comes
    return ParseStepPlan(Serialize(plan)).status().code() == StatusCode::kDataLoss;
  };
  constexpr size_t kKnown = 0, kDecode = 1;
  EXPECT_FALSE(refused(kKnown, [](StepRow&) {}));
  EXPECT_TRUE(refused(kKnown, [](StepRow& row) { row.tokens.clear(); }));
  EXPECT_TRUE(refused(kKnown, [](StepRow& row) { row.begin = kAtSlot; }));
  EXPECT_TRUE(refused(kKnown, [](StepRow& row) { row.drafts = 1; }));
  EXPECT_FALSE(refused(kDecode, [](StepRow& row) { row.masked = true; }));
  EXPECT_TRUE(refused(kKnown, [](StepRow& row) { row.samples = false, row.masked = true; }));
  EXPECT_TRUE(refused(kKnown, [](StepRow& row) { row.begin = 2147483645; }));
  EXPECT_TRUE(refused(kDecode, [](StepRow& row) { row.begin = 0; }));
  EXPECT_TRUE(refused(kDecode, [](StepRow& row) { row.samples = false; }));
  EXPECT_TRUE(refused(kDecode, [](StepRow& row) { row.prompt_logprobs = true; }));
  EXPECT_TRUE(refused(kDecode, [](StepRow& row) { row.tokens = {TokenId{1}}; }));
  EXPECT_TRUE(refused(kDecode, [](StepRow& row) { row.drafts = 2147483647; }));
}

TEST(StepPlan, ShapeIsTheMostOfAnyGroup) {
  StepPlan decodes;
  for (const int32_t drafts : {0, 2, 0}) {
    decodes.rows.push_back({.drafts = drafts, .samples = true});
  }
  const StepPlan prompt{.rows = {{.begin = 0,
                                  .tokens = {TokenId{1}, TokenId{2}, TokenId{3}, TokenId{4},
                                             TokenId{5}, TokenId{6}}}}};
  StepShape shape;
  Widen(shape, decodes, /*logprobs=*/false);
  EXPECT_EQ(shape, (StepShape{.rows = 3, .tokens = 5, .logit_vectors = 5}));
  Widen(shape, prompt, false);
  Widen(shape, StepPlan(), false);
  EXPECT_EQ(shape, (StepShape{.rows = 3, .tokens = 6, .logit_vectors = 5, .known = true}));
  decodes.rows.pop_back();
  Widen(shape, decodes, true);
  EXPECT_EQ(
      shape,
      (StepShape{.rows = 3, .tokens = 6, .logit_vectors = 5, .logprob_vectors = 4, .known = true}));
  for (const bool expanded : {true, false}) {
    StepPlan other = prompt;
    if (expanded) other.rows[0].form = AttentionForm::kExpanded;
    if (!expanded) other.rows[0].prompt_logprobs = true;
    StepShape of_both = shape;
    Widen(of_both, other, false);
    EXPECT_TRUE(of_both.eager);
    EXPECT_FALSE(shape.eager);
  }
}

TEST(StepPlan, ShapeThatDoesNotHoldTheRowsIsRefused) {
  const auto refused = [](auto damage) {
    StepPlan plan = SomePlan();
    damage(plan.shape);
    return ParseStepPlan(Serialize(plan)).status().code() == StatusCode::kDataLoss;
  };
  EXPECT_FALSE(refused([](StepShape&) {}));
  EXPECT_FALSE(refused([](StepShape& shape) {  // those of other groups
    shape.rows = shape.tokens = shape.logit_vectors = shape.logprob_vectors = 1000;
  }));
  EXPECT_TRUE(refused([](StepShape& shape) { --shape.rows; }));
  EXPECT_TRUE(refused([](StepShape& shape) { --shape.tokens; }));
  EXPECT_TRUE(refused([](StepShape& shape) { --shape.logit_vectors; }));
  EXPECT_TRUE(refused([](StepShape& shape) { ++shape.logprob_vectors; }));
  EXPECT_TRUE(refused([](StepShape& shape) { shape.eager = false; }));
  EXPECT_TRUE(refused([](StepShape& shape) { shape.known = false; }));
}

// Each float of a request in turn. What is out of its range is the sampler's business, not the
// message's: a server checks it before.
TEST(StepPlan, FloatsThatAreNoNumbersAreRefused) {
  using Float = float& (*)(SamplingParams&);
  const Float floats[] = {[](SamplingParams& p) -> float& { return p.temperature; },
                          [](SamplingParams& p) -> float& { return p.top_p; },
                          [](SamplingParams& p) -> float& { return p.min_p; },
                          [](SamplingParams& p) -> float& { return p.presence_penalty; },
                          [](SamplingParams& p) -> float& { return p.frequency_penalty; },
                          [](SamplingParams& p) -> float& { return p.repetition_penalty; },
                          [](SamplingParams& p) -> float& { return p.logit_bias[1].second; }};
  for (const Float& of : floats) {
    for (const float value : {std::nanf(""), INFINITY, -INFINITY, 0.5f}) {
      StepPlan plan = SomePlan();
      RequestParams params = *plan.openings[0].params;
      of(params.sampling) = value;
      plan.openings[0].params = std::make_shared<const RequestParams>(params);
      EXPECT_EQ(ParseStepPlan(Serialize(plan)).ok(), value == 0.5f);
    }
  }
}

}  // namespace
}  // namespace fathom
