// Recorded steps of more tokens than rows: decodes of a slot's last token and its drafts, replayed.
// Needs a GPU.
#include <gtest/gtest.h>

#include "cuda/device.h"
#include "engine/model_executor.h"
#include "engine/test_decodes.h"
#include "engine/test_draft_layer.h"

namespace fathom {
namespace {

constexpr BatchCapacity kPadded = {.rows = 3, .tokens = 12, .logit_vectors = 12};

class RecordedDraftsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Open(0);
    if (!device.ok()) GTEST_SKIP() << "not run: " << device.status().message();
    device_ = std::move(device).value();
  }
  std::unique_ptr<CudaDevice> device_;
};

// On both tables: rows of drafts, op by op and replayed, against one token at a time op by op.
TEST_F(RecordedDraftsTest, TokensHaveTheSameBitsInReplayedRowsOfDraftsAsOneByOne) {
  for (const Ops* ops : {&CudaPortableOps(Fp8Activations::kQuantized),
                         &CudaOps(*device_, Fp8Activations::kQuantized)}) {
    device_->BindThread();  // another device may have had this thread
    TestDecodes without(*ops, *device_, /*max_drafts=*/0), eager(*ops, *device_, kTestDrafts);
    const TestDecodes::Tokens one_by_one = without.OneByOne(3 * kTestCycleTokens);
    EXPECT_TRUE(WithDrafts(eager, one_by_one) == one_by_one) << ops->name;
    // Steps of its own addresses need records of their own: a device for it alone.
    auto device = CudaDevice::Open(0).value();
    TestDecodes replayed(*ops, *device, kTestDrafts);
    EXPECT_TRUE(WithDrafts(replayed, one_by_one, kPadded) == one_by_one) << ops->name;
    EXPECT_TRUE(device->status().ok()) << device->status().message();
  }
}

// The executor's own sizes: rows with room for drafts replay a record of more tokens than rows.
TEST_F(RecordedDraftsTest, TheExecutorReplaysRowsWithRoomForDrafts) {
  const Ops& ops = CudaOps(*device_, Fp8Activations::kQuantized);
  TestDecodes without(ops, *device_, 0);
  const TestDecodes::Tokens one_by_one = without.OneByOne(4);
  auto device = CudaDevice::Open(0).value();
  const auto model = Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops, *device,
                                 TestModelOptions(kTestDrafts), nullptr)
                         .value();
  ModelExecutor executor(*model, *device,
                         {.num_pages = kTestRequests * kTestPagesEach, .slots = kTestRequests});
  EXPECT_EQ(executor.recorded().steps,
            static_cast<int64_t>(RecordedSizes(TestModelOptions(kTestDrafts)).size()));
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

// A record of a step without drafts leaves the draft layer out; a prompt's part that takes the
// absorbed form in such a step is given to it behind the replay, with the bits of op by op.
TEST_F(RecordedDraftsTest, WithoutDraftsTheDraftLayerHasPromptsAsOpByOp) {
  const auto run = [](bool records, bool known) {
    auto device = CudaDevice::Open(0).value();
    if (!records) device->RecordNothing();
    return RunAPromptWithoutDrafts(CudaOps(*device, Fp8Activations::kQuantized), *device, known);
  };
  const DraftLayerRun eager = run(false, true), replayed = run(true, true);
  EXPECT_GT(eager.enqueued, 1);
  EXPECT_EQ(replayed.enqueued, 1);
  EXPECT_TRUE(replayed.bits.pages == eager.bits.pages);
  EXPECT_EQ(replayed.bits.tokens, eager.bits.tokens);
  EXPECT_EQ(replayed.bits.proposed, eager.bits.proposed);
  // The canary: what is missing shows.
  const DraftLayerRun without = run(true, false);
  EXPECT_EQ(without.enqueued, 0);
  EXPECT_FALSE(without.bits.pages == eager.bits.pages);
  EXPECT_NE(without.bits.proposed, eager.bits.proposed);
}

}  // namespace
}  // namespace fathom
