// Runs the steps that plans describe: a model with all that a plan speaks of, which is the KV pool,
// the slots, a step's rows and what is sampled from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "engine/mtp_proposer.h"
#include "model/batch.h"
#include "model/kv_pool.h"
#include "model/model.h"
#include "sampling/sampler.h"
#include "sampling/slots.h"
#include "scheduler/step_plan.h"

namespace fathom {

struct StepRunnerCapacity {
  int64_t num_pages = 0;
  int64_t slots = 0;
};

// What a runner takes of a device's memory beside the model and the cache.
struct StepRunnerBytes {
  size_t slots = 0;   // the device-resident state of running requests
  size_t logits = 0;  // logit vectors, and the inputs of a step
};

// A plan whose rows are on the device.
struct StagedStep {
  StagedStep(const BatchCapacity& capacity, Device& device) : inputs(capacity, device) {}

  StepInputs inputs;
  Batch batch;
  // As DrawnStep says:
  int64_t step_rows = 0;
  int32_t drafts = 0;
  DraftTokens draft_tokens = DraftTokens::kAll;
  bool keeps_logits = false;  // for LogProbsOfDrawn
};

// A step is Begin(), Stage(), Forward(), HandOn(), SampleAndCommit() and CacheKnown(). All of them
// enqueue, none waits. Of several pipeline stages one may run others' Forward() and HandOn() before
// a step's SampleAndCommit(), as many as there are stages after it.
//
// THREAD: one at a time.
class StepRunner {
 public:
  // `model` and `device` must outlive the runner, which is the only one to use them.
  StepRunner(Model& model, Device& device, const StepRunnerCapacity& capacity);

  // Of a runner of so many slots, by the code that lays it out.
  static StepRunnerBytes Bytes(const ModelConfig& config, const ModelOptions& options,
                               int64_t slots, const Ops& ops);

  // Errors name this step from here on. Opens the plan's slots, and adds the pages of its rows.
  void Begin(const StepPlan& plan);
  // Uploads the plan's rows. The batch's shapes have room for `padded`: StepInputs::Stage. What it
  // returns takes its turn among places(), and stays until that comes again.
  const StagedStep& Stage(const StepPlan& plan, const BatchCapacity& padded = {});
  // Where steps are staged: as many as one stage has in its hands. What is recorded is of one
  // place.
  size_t places() const { return staged_.size(); }
  size_t PlaceOf(const StagedStep& step) const {
    return static_cast<size_t>(&step - staged_.data());
  }
  // Uploads what the plan's masked rows may sample: before SampleAndCommit().
  void SetMasks(const StepPlan& plan, const StepMasks& masks);

  // These are ops alone, without uploads.
  // Final-normed hidden states [tokens, hidden], valid until the next pass: Model::Forward.
  TensorView Forward(const StagedStep& step);
  // Model::HandOn, of the step whose Forward() was the last.
  void HandOn(const StagedStep& step) { model_.HandOn(step.batch); }
  // Model::ForwardMtp.
  TensorView ForwardMtp(int index, const StagedStep& step, const TensorView& hidden);
  // Draws a token of each logit vector, in passes, and advances the slots by what stands; stages
  // before the last one, to which `hidden` means nothing, are told what it draws.
  // `after_pass` is called with the index of each pass, in order, while its logits are there.
  void SampleAndCommit(const StagedStep& step, const TensorView& hidden,
                       const std::function<void(size_t pass)>& after_pass = {});
  // The draft layer's part of a step without drafts, if it has known tokens. Of the step's number
  // of these, so that it is never recorded.
  void CacheKnown(const StagedStep& step);

  // Of the step that was sampled last; `to` is written once a later mark has been waited for.
  void DownloadDrawn(const StepPlan& plan, const StagedStep& step, Sampler::Drawn& to);
  // The slots' drafts, after the step that was sampled last; `to` as above.
  struct SlotDrafts {
    std::vector<int32_t> drafts, counts;  // [slots, most], [slots]
    std::span<const int32_t> Of(SlotId slot) const;
  };
  void DownloadDrafts(SlotDrafts& to);
  // Log-probabilities of what was drawn in a pass, until the next one. REQUIRES: the plan's shape
  // says that some are wanted.
  void LogProbsOfDrawn(const StepPlan& plan, const StagedStep& step, size_t pass,
                       Sampler::LogprobWidths widths, Sampler::PassLogprobs& to);

  // Logits [index, vocab] of tokens of the batch that the caller chose, at most pass_vectors() of
  // them; valid until the next pass.
  TensorView Logits(const TensorView& hidden, std::span<const int32_t> index);
  // Log-probabilities of `tokens` after those; `to` as above.
  void LogProbs(const TensorView& hidden, std::span<const int32_t> index,
                std::span<const TokenId> tokens, int32_t top, Sampler::PassLogprobs& to);

  // Whether it is the last stage's, which alone has logits and can say what was drawn.
  bool draws() const { return model_.options().shard.last_stage(); }
  int64_t max_model_len() const { return model_.options().max_model_len; }
  int64_t pass_vectors() const { return sampler_.pass_vectors(); }
  const SlotState& slots() const { return slots_.state(); }

 private:
  TensorView ComputeLogits(const LogitPass& pass, const TensorView& hidden);

  Model& model_;
  Device& device_;
  KvPool pool_;
  Slots slots_;
  Sampler sampler_;
  std::vector<StagedStep> staged_;
  size_t next_place_ = 0;
  std::optional<MtpProposer> mtp_;
};

}  // namespace fathom
