// What of a step the draft layer computes.
#include "engine/mtp_proposer.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/test_decodes.h"
#include "engine/test_draft_layer.h"
#include "engine/test_recording_cpu.h"
#include "ops/cpu_ops.h"
#include "ops/page_tokens.h"

namespace fathom {
namespace {

// What a token's entry in a layer's cache holds, and whose it is.
using Place = std::pair<int32_t, int32_t>;  // slot, position
using Entries = std::map<Place, std::vector<float>>;

// What was written since it was cleared, by layer of the model, the draft layer being the last:
// each pass through them writes to the same planes. One runs at a time.
struct Written {
  std::map<const void*, Entries> layers;

  const Entries& draft_layer() const { return layers.rbegin()->second; }
};
Written* written = nullptr;
const Ops* right = nullptr;

void RotateCacheAndTell(OpContext& context, const RotateAndCacheArgs& a) {
  right->rotate_and_cache.run(context, a);
  Entries& entries = written->layers[a.pages.latent.data()];
  for (int32_t t = 0; t < *a.tokens.live.As<int32_t>(); ++t) {
    const int32_t slot = a.tokens.slots.As<int32_t>()[t];
    const int32_t position = a.tokens.positions.As<int32_t>()[t];
    const int32_t page =
        PageOf(SlotPages(a.tokens.page_table, slot), a.tokens.page_table.dim(1), position, a.pages);
    std::vector<float> entry(static_cast<size_t>(a.pages.latent.dim(2) + a.pages.rope.dim(2)));
    LoadLatent(a.pages, page, position, entry.data());
    LoadRope(a.pages, page, position, entry.data() + a.pages.latent.dim(2));
    entries[{slot, position}] = std::move(entry);
  }
}

class DraftLayer : public testing::Test {
 protected:
  DraftLayer() {
    right = &CpuOps(Fp8Activations::kExact);
    ops_ = *right;
    ops_.rotate_and_cache.run = RotateCacheAndTell;
    written = &written_;
    ModelOptions options = TestModelOptions(kTestDrafts);
    options.mtp = true;
    model_ =
        Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops_, device_, options, nullptr)
            .value();
    runner_.emplace(
        *model_, device_,
        StepRunnerCapacity{.num_pages = kTestRequests * kTestPagesEach, .slots = kTestRequests});
  }

  // Runs a step that proposes so many drafts; what it drew.
  std::vector<std::optional<TokenId>> Run(StepPlan plan, int32_t drafts) {
    written_ = {};
    plan.step = steps_++;
    plan.shape.drafts = drafts;
    runner_->Begin(plan);
    const StagedStep& step = runner_->Stage(plan);
    runner_->SampleAndCommit(step, runner_->Forward(step));
    runner_->CacheKnown(step);
    Sampler::Drawn drawn;
    runner_->DownloadDrawn(plan, step, drawn);
    device_.WaitFor(device_.Mark());
    std::vector<std::optional<TokenId>> tokens;
    for (int64_t i = 0; i < plan.num_logit_vectors(); ++i) {
      tokens.push_back(drawn.token(static_cast<size_t>(i)));
    }
    return tokens;
  }
  // Runs the prompts of the first requests, all but the last one.
  void Begin() { Run(FirstPromptsPlan(), 1); }
  int32_t Length(int64_t slot) const { return runner_->slots().length.As<int32_t>()[slot]; }
  size_t layers() const { return static_cast<size_t>(model_->cached_layers()); }

  Written written_;
  Ops ops_;
  CpuDevice device_{2};
  std::unique_ptr<Model> model_;
  std::optional<StepRunner> runner_;
  uint64_t steps_ = 0;
};

TEST_F(DraftLayer, WithoutDraftsComputesTheTokensOfPromptsAlone) {
  Begin();
  Run(MixedPlan(AttentionForm::kAbsorbed), 0);
  ASSERT_EQ(written_.layers.size(), layers());
  constexpr int32_t kLast = kTestRequests - 1;
  const auto prompt = static_cast<size_t>(Length(kLast));
  EXPECT_EQ(written_.layers.begin()->second.size(), prompt + kLast);  // decodes too
  EXPECT_EQ(written_.draft_layer().size(), prompt);
  for (const auto& [place, entry] : written_.draft_layer()) EXPECT_EQ(place.first, kLast);

  // A step of decodes has nothing for it, and with drafts everything.
  Run(DecodesPlan(0, {0, 0, 0}), 0);
  EXPECT_EQ(written_.layers.size(), layers() - 1);
  Run(DecodesPlan(0, {0, 0, 0}), 1);
  EXPECT_EQ(written_.layers.size(), layers());
  EXPECT_EQ(written_.draft_layer().size(), size_t{kTestRequests});
}

// A row of one token is a prompt's too: what follows a prefix that was found, if that is all.
TEST_F(DraftLayer, WithoutDraftsComputesTheLastTokenOfAPromptThatIsAlone) {
  Begin();
  StepPlan plan = MixedPlan(AttentionForm::kAbsorbed);
  StepPlan last = plan;
  const size_t before = plan.rows[0].tokens.size() - 1;
  plan.rows[0].tokens.pop_back();
  plan.rows[0].samples = false;
  Widen(plan.shape = {}, plan, /*logprobs=*/false);
  Run(std::move(plan), 0);
  EXPECT_EQ(written_.draft_layer().size(), before);

  last.openings.clear();
  last.rows[0].tokens.erase(last.rows[0].tokens.begin(), last.rows[0].tokens.end() - 1);
  last.rows[0].begin = static_cast<int32_t>(before);
  last.rows[0].new_pages.clear();
  Widen(last.shape = {}, last, /*logprobs=*/false);
  Run(std::move(last), 0);
  ASSERT_EQ(written_.layers.size(), layers());
  ASSERT_EQ(written_.draft_layer().size(), 1u);
  EXPECT_EQ(written_.draft_layer().begin()->first, Place(kTestRequests - 1, before));
}

// A group's few tokens of a prompt beside another's many decodes: the shape says it, no number
// does.
TEST_F(DraftLayer, WithoutDraftsComputesAPromptBesideAGroupOfAsManyRows) {
  Begin();
  StepPlan plan = MixedPlan(AttentionForm::kAbsorbed);
  plan.shape.rows = plan.shape.tokens;
  Run(std::move(plan), 0);
  ASSERT_EQ(written_.layers.size(), layers());
  EXPECT_EQ(written_.draft_layer().size(), static_cast<size_t>(Length(kTestRequests - 1)));
}

// One group's decodes beside another's prompts: ranks that share experts run the layer all alike.
TEST_F(DraftLayer, TakesPartWithoutATokenWhereOnlyOthersHavePrompts) {
  Begin();
  StepPlan plan = MixedPlan(AttentionForm::kAbsorbed);
  const StepShape shape = plan.shape;
  plan.openings.clear();
  plan.rows.erase(plan.rows.begin());
  plan.shape = shape;
  Run(std::move(plan), 0);
  ASSERT_EQ(written_.layers.size(), layers());
  EXPECT_TRUE(written_.draft_layer().empty());
}

TEST_F(DraftLayer, GivesPromptsTheSameBitsWithDraftsAndWithout) {
  for (const AttentionForm form : {AttentionForm::kAbsorbed, AttentionForm::kExpanded}) {
    std::vector<Entries> prompts;
    std::vector<std::vector<std::optional<TokenId>>> drawn;
    std::vector<std::vector<int32_t>> drafts;
    for (const int32_t depth : {0, 2}) {
      Begin();
      drawn.push_back(Run(MixedPlan(form), depth));
      Entries& prompt = prompts.emplace_back(written_.draft_layer());
      // What a chain of drafts leaves lies behind the prompt.
      const int32_t length = Length(kTestRequests - 1);
      std::erase_if(prompt, [&](const auto& entry) {
        return entry.first.first != kTestRequests - 1 || entry.first.second >= length;
      });
      EXPECT_EQ(prompt.size(), static_cast<size_t>(length));
      // So that its next drafts are the same.
      drawn.push_back(Run(DecodesPlan(0, {0, 0, 0}), 2));
      const int32_t* next = runner_->slots().drafts.As<int32_t>(kTestRequests - 1);
      drafts.emplace_back(next, next + 2);
    }
    EXPECT_EQ(prompts[0], prompts[1]);
    EXPECT_EQ(drawn[0], drawn[2]);
    EXPECT_EQ(drawn[1], drawn[3]);
    EXPECT_EQ(drafts[0], drafts[1]);
  }
}

// What a record of a step without drafts has not, the executor adds; on GPUs, where steps are
// replayed: tests/gpu/recorded_drafts_test.cc.
TEST(DraftLayerOfAnExecutor, HasPromptsOfStepsOfRecordedSizes) {
  const Ops& ops = CpuOps(Fp8Activations::kExact);
  CpuDevice cpu(2);
  const DraftLayerRun eager = RunAPromptWithoutDrafts(ops, cpu);
  RecordingCpu recording(2), canary(2);
  EXPECT_TRUE(RunAPromptWithoutDrafts(ops, recording).bits == eager.bits);
  // What is missing shows, in the pages and in what is guessed.
  const DraftLayerRun without = RunAPromptWithoutDrafts(ops, canary, /*known=*/false);
  EXPECT_NE(without.bits.pages, eager.bits.pages);
  EXPECT_NE(without.bits.proposed, eager.bits.proposed);
}

}  // namespace
}  // namespace fathom
