// Decodes of several tokens: rows of a slot's last token and its drafts.
#include "engine/step_runner.h"

#include <gtest/gtest.h>

#include "cpu/cpu_device.h"
#include "engine/model_executor.h"
#include "engine/test_decodes.h"

namespace fathom {
namespace {

TEST(StepRunner, TokensHaveTheSameBitsInRowsOfDraftsAsOneByOne) {
  for (const Ops* ops : {&CpuOps(Fp8Activations::kExact), &CpuOps(Fp8Activations::kQuantized),
                         &CpuBF16Ops(), &CpuIntegerOps(WeightFormat::kInt8)}) {
    CpuDevice device(2);
    TestDecodes without(*ops, device, /*max_drafts=*/0), with(*ops, device, kTestDrafts);
    const TestDecodes::Tokens one_by_one = without.OneByOne(2 * kTestCycleTokens);
    EXPECT_TRUE(WithDrafts(with, one_by_one) == one_by_one) << ops->name;
    // Slots that have room for drafts and none, in a step that is padded.
    TestDecodes empty(*ops, device, kTestDrafts);
    const TestDecodes::Tokens padded =
        empty.Step(std::vector<std::vector<TokenId>>(kTestRequests),
                   {.rows = kTestRequests, .tokens = 12, .logit_vectors = 12});
    for (size_t r = 0; r < padded.size(); ++r) EXPECT_TRUE(padded[r][0] == one_by_one[r][0]);
  }
}

// The canary: a draft that is not what follows has other bits behind it, and falls.
TEST(StepRunner, AWrongDraftIsNoticed) {
  const Ops& ops = CpuOps(Fp8Activations::kExact);
  CpuDevice device(2);
  TestDecodes without(ops, device, 0), with(ops, device, kTestDrafts);
  const TestDecodes::Tokens one_by_one = without.OneByOne(2);
  std::vector<std::vector<TokenId>> drafts;
  for (const auto& tokens : one_by_one) drafts.push_back({tokens[0].id});
  drafts[1][0] = TokenId{Raw(drafts[1][0]) ^ 1};
  const TestDecodes::Tokens tokens = with.Step(drafts);
  EXPECT_TRUE(tokens[0] == one_by_one[0] && tokens[2] == one_by_one[2]);
  EXPECT_TRUE(tokens[1][0] == one_by_one[1][0]);
  EXPECT_NE(tokens[1][1].hidden, one_by_one[1][1].hidden);
  EXPECT_NE(tokens[1][1].logits, one_by_one[1][1].logits);
  EXPECT_EQ(with.stood(), (std::vector<int32_t>{2, 1, 2}));
}

// A recorded step is replayed whole before the log-probabilities of what it drew are read: what
// proposes behind the draw must leave the logits as they are.
TEST(StepRunner, TheModelsDraftsLeaveTheLogitsOfWhatWasDrawn) {
  const Ops& ops = CpuOps(Fp8Activations::kExact);
  CpuDevice device(2);
  ModelOptions options = TestModelOptions(kTestDrafts);
  options.mtp = true;
  const auto model =
      Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops, device, options, nullptr)
          .value();
  StepRunner runner(*model, device,
                    {.num_pages = kTestRequests * kTestPagesEach, .slots = kTestRequests});
  StepPlan plan = PromptsPlan();
  plan.shape.drafts = 2;
  Widen(plan.shape, plan, /*logprobs=*/true);
  for (SlotOpening& opening : plan.openings) {
    RequestParams params = *opening.params;
    params.sampling.logprob_token_ids = {TokenId{5}, TokenId{Raw(opening.slot)}};
    opening.params = std::make_shared<const RequestParams>(std::move(params));
  }
  runner.Begin(plan);
  const StagedStep& step = runner.Stage(plan);
  Sampler::PassLogprobs before, after;
  const Sampler::LogprobWidths widths{.top = 4, .named = 2};
  runner.SampleAndCommit(step, runner.Forward(step), [&](size_t pass) {
    runner.LogProbsOfDrawn(plan, step, pass, widths, before);
  });
  runner.LogProbsOfDrawn(plan, step, 0, widths, after);
  device.WaitFor(device.Mark());
  EXPECT_GT(before.top_logprobs[0], before.top_logprobs[1]);  // logits were kept
  EXPECT_EQ(before.logprobs, after.logprobs);
  EXPECT_EQ(before.top_ids, after.top_ids);
  EXPECT_EQ(before.top_logprobs, after.top_logprobs);
  EXPECT_EQ(before.named.size(), size_t{2 * kTestRequests});
  EXPECT_EQ(before.named, after.named);
  for (int64_t slot = 0; slot < kTestRequests; ++slot) {
    EXPECT_EQ(runner.slots().num_drafts.As<int32_t>()[slot], 2);
  }
}

// Rows with room for drafts bring one token each while slots have none.
TEST(ModelExecutor, RowsWithRoomForDrafts) {
  const Ops& ops = CpuOps(Fp8Activations::kExact);
  CpuDevice device(2), other(2);
  TestDecodes without(ops, other, 0);
  const TestDecodes::Tokens one_by_one = without.OneByOne(4);
  const auto model = Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops, device,
                                 TestModelOptions(kTestDrafts), nullptr)
                         .value();
  ModelExecutor executor(*model, device,
                         {.num_pages = kTestRequests * kTestPagesEach, .slots = kTestRequests});
  EXPECT_EQ(executor.recorded().steps, 0);  // a CPU records nothing
  executor.Submit({.groups = {PromptsPlan()}});
  ASSERT_TRUE(executor.Wait().status.ok());
  for (uint64_t step = 1; step <= 4; ++step) {
    executor.Submit({.groups = {DecodesPlan(step, {3, 0, 2})}});
    const StepResult result = executor.Wait();
    ASSERT_TRUE(result.status.ok()) << result.status.message();
    for (size_t r = 0; r < result.rows.size(); ++r) {
      ASSERT_EQ(result.rows[r].tokens.size(), 1u);
      EXPECT_EQ(result.rows[r].tokens[0].id, one_by_one[r][step - 1].id);
    }
  }
}

std::vector<std::pair<int64_t, int64_t>> RowsAndTokens(const ModelOptions& options) {
  std::vector<std::pair<int64_t, int64_t>> sizes;
  for (const BatchCapacity& size : RecordedSizes(options)) {
    EXPECT_EQ(size.logit_vectors, size.tokens);
    sizes.emplace_back(size.rows, size.tokens);
  }
  return sizes;
}

TEST(RecordedSizes, RowsOfOneTokenAndRowsOfDrafts) {
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(RowsAndTokens({.max_tokens = 100, .max_rows = 4}), (Sizes{{1, 1}, {2, 2}, {4, 4}}));
  EXPECT_EQ(RowsAndTokens({.max_tokens = 100, .max_rows = 4, .max_drafts = 3}), (Sizes{{1, 1},
                                                                                       {2, 2},
                                                                                       {1, 2},
                                                                                       {1, 3},
                                                                                       {4, 4},
                                                                                       {2, 4},
                                                                                       {1, 4},
                                                                                       {2, 6},
                                                                                       {4, 8},
                                                                                       {2, 8},
                                                                                       {4, 12},
                                                                                       {4, 16}}));
  // No step has more tokens than there is room for.
  EXPECT_EQ(RowsAndTokens({.max_tokens = 5, .max_rows = 4, .max_drafts = 3}),
            (Sizes{{1, 1}, {2, 2}, {1, 2}, {1, 3}, {4, 4}, {2, 4}, {1, 4}}));
  // Their number grows with the logarithm of the drafts.
  const size_t without = RecordedSizes({.max_tokens = 8192, .max_rows = 256}).size();
  EXPECT_LE(without, 24u);
  EXPECT_LE(RecordedSizes({.max_tokens = 8192, .max_rows = 256, .max_drafts = 16}).size(),
            6 * without);
}

}  // namespace
}  // namespace fathom
