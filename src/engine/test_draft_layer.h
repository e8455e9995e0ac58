// A prompt that comes in with a step without drafts, through an executor: what the draft layer
// keeps of it, and what it makes of that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/model_executor.h"
#include "engine/test_decodes.h"
#include "model/model.h"
#include "tensor/device.h"

namespace fathom {

struct DraftLayerRun {
  struct Bits {
    std::vector<std::byte> pages;   // of the draft layer, behind the step with the prompt
    std::vector<int32_t> tokens;    // that the steps drew
    std::vector<int32_t> proposed;  // behind the later ones, with drafts
    friend bool operator==(const Bits&, const Bits&) = default;
  } bits;
  int enqueued = 0;  // layers whose latents the step with the prompt enqueued itself
};

// The draft layer's are the last of the pool.
struct SeenPages {
  TensorView draft_latent;
  int layers = 0;  // that were seen
};
inline SeenPages seen_pages;
inline void (*rotate_and_cache_of_table)(OpContext&, const RotateAndCacheArgs&) = nullptr;

// The last request's prompt, and decodes of the others. `form`: of the prompt.
inline StepPlan MixedPlan(AttentionForm form) {
  StepPlan prompts = PromptsPlan();
  StepPlan plan{.openings = {prompts.openings.back()}, .rows = {prompts.rows.back()}};
  plan.rows[0].form = form;
  for (int32_t r = 0; r < kTestRequests - 1; ++r) {
    plan.rows.push_back({.slot = SlotId{r}, .samples = true});
  }
  Widen(plan.shape, plan, /*logprobs=*/false);
  return plan;
}

// The prompts of the others.
inline StepPlan FirstPromptsPlan() {
  StepPlan plan = PromptsPlan();
  plan.openings.pop_back();
  plan.rows.pop_back();
  return plan;
}

// Steps that are all of a recorded size, where the device records. `known`: as the shape of the
// step with the prompt says.
inline DraftLayerRun RunAPromptWithoutDrafts(const Ops& table, Device& device, bool known = true) {
  seen_pages = {};
  rotate_and_cache_of_table = table.rotate_and_cache.run;
  Ops ops = table;
  ops.rotate_and_cache.run = [](OpContext& context, const RotateAndCacheArgs& a) {
    ++seen_pages.layers;
    TensorView& last = seen_pages.draft_latent;
    if (last.absent() || a.pages.latent.data() > last.data()) last = a.pages.latent;
    rotate_and_cache_of_table(context, a);
  };
  ModelOptions options = TestModelOptions(kTestDrafts);
  options.mtp = true;
  options.max_rows = options.max_logit_vectors = 64;
  const auto model =
      Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops, device, options, nullptr)
          .value();
  ModelExecutor executor(*model, device,
                         {.num_pages = kTestRequests * kTestPagesEach, .slots = kTestRequests});
  DraftLayerRun run;
  uint64_t steps = 0;
  const auto step = [&](StepPlan plan, int32_t drafts) {
    plan.step = steps++;
    plan.shape.drafts = drafts;
    StepMasks masks{.step = plan.step};
    for (const StepRow& row : plan.rows) masks.masks.resize(masks.masks.size() + row.masked);
    executor.Submit({.groups = {std::move(plan)}});
    if (!masks.masks.empty()) executor.SubmitMasks({std::move(masks)});
    const StepResult result = executor.Wait();
    CHECK(result.status.ok(), "{}", result.status.message());
    for (const RowResult& row : result.rows) {
      for (const GeneratedToken& token : row.tokens) run.bits.tokens.push_back(Raw(token.id));
      for (const TokenId token : row.proposed) run.bits.proposed.push_back(Raw(token));
    }
  };
  step(FirstPromptsPlan(), kTestDrafts);

  StepPlan prompt = MixedPlan(AttentionForm::kAbsorbed);
  prompt.shape.known = known;
  const int before = seen_pages.layers;
  step(std::move(prompt), 0);
  run.enqueued = seen_pages.layers - before;
  device.BindThread();
  const TensorView& last = seen_pages.draft_latent;
  const int64_t bytes = model->kv_format().page_bytes() * last.dim(0);
  run.bits.pages.resize(static_cast<size_t>(bytes));
  device.Download(run.bits.pages, TensorView(last.data(), DType::kU8, {bytes}));
  device.WaitFor(device.Mark());

  for (int i = 0; i < 3; ++i) {
    StepPlan decodes = DecodesPlan(0, std::vector<int32_t>(kTestRequests, kTestDrafts));
    // With masks, all empty here, come the drafts that are proposed.
    for (StepRow& row : decodes.rows) row.masked = true;
    step(std::move(decodes), kTestDrafts);
  }
  return run;
}

}  // namespace fathom
