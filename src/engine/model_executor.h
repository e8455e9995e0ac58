// Runs a model's steps on a thread of their own, so that the engine plans while the device works.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/executor.h"
#include "model/batch.h"
#include "model/kv_pool.h"
#include "model/model.h"
#include "sampling/sampler.h"
#include "sampling/slots.h"

namespace fathom {

struct ModelExecutorOptions {
  int64_t num_pages = 0;
  int64_t slots = 0;          // SchedulerOptions::max_num_seqs
  int32_t max_in_flight = 2;  // SchedulerOptions::depth
};

class ModelExecutor final : public Executor {
 public:
  // `model` and `device` must outlive the executor, which is the only one to use them.
  ModelExecutor(Model& model, Device& device, const ModelExecutorOptions& options);
  ~ModelExecutor() override;

  void Submit(ExecutorStep step) override;
  StepResult Wait() override;

 private:
  // What the host keeps of a slot for prompt_logprobs.
  struct PromptOfSlot {
    std::vector<TokenId> tokens;
    int32_t top = -1;
  };

  // The rows of a step that sample, as the host knows them.
  struct SampledRows {
    std::vector<size_t> row;          // of the plan
    std::vector<int32_t> last_token;  // of the batch
    std::vector<int32_t> positions;   // of the new token
    std::vector<SlotId> slots;
    std::vector<int32_t> sampled_index;  // of every row of the plan
    std::vector<int32_t> logprobs;       // wanted: SamplingParams::logprobs
  };
  // Log-probabilities of some of a row's prompt tokens.
  struct PromptPass {
    size_t row;  // of the plan
    int32_t top;
    int32_t last_position;  // of the row in this step
    Sampler::PassLogprobs logprobs;
  };
  // A step that the device works on.
  struct Enqueued {
    StepResult result;
    SampledRows rows;
    Sampler::Drawn drawn;
    Sampler::PassLogprobs logprobs;
    std::vector<PromptPass> prompt_passes;
    uint64_t mark = 0;
  };

  void Loop();
  // Records the steps of every size once, with no live row.
  void WarmUp();
  void Enqueue(const ExecutorStep& step);
  StepResult Finish(Enqueued& step);
  void EnterSlots(const ExecutorStep& step);
  SampledRows RowsToSample(const StepPlan& plan) const;
  // What was staged: its pass and its sampling, recorded per size of the step.
  void Replay(const Batch& batch);
  void EnqueueSampling(const Batch& batch, const TensorView& hidden, bool samples);
  void StageSampler(const SampledRows& rows, int64_t padded);
  void EnqueueEagerly(const StepPlan& plan, const Batch& batch, Enqueued& enqueued);
  void EnqueuePromptLogprobs(const StepPlan& plan, const TensorView& hidden,
                             std::vector<PromptPass>& passes);

  Model& model_;
  KvPool pool_;
  Slots slots_;
  Sampler sampler_;
  StepInputs inputs_;
  std::vector<PromptOfSlot> prompts_;  // per slot
  std::vector<int32_t> logprobs_;      // per slot: SamplingParams::logprobs
  std::vector<int64_t> sizes_;         // that steps are padded to; empty: they are not
  std::deque<Enqueued> enqueued_;
  const size_t max_in_flight_;
  BoundedQueue<ExecutorStep> steps_;
  BoundedQueue<StepResult> results_;
  std::thread thread_;
};

}  // namespace fathom
