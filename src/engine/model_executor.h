// Runs a model's steps on a thread of their own, so that the engine plans while the device works.
#pragma once

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

  void Loop();
  StepResult Run(const ExecutorStep& step);
  void EnterSlots(const ExecutorStep& step);
  void SampleRows(const StepPlan& plan, const Batch& batch, const TensorView& hidden,
                  StepResult& result);
  void PromptLogprobs(const StepPlan& plan, const TensorView& hidden, StepResult& result);

  Model& model_;
  KvPool pool_;
  Slots slots_;
  Sampler sampler_;
  StepInputs inputs_;
  std::vector<PromptOfSlot> prompts_;  // per slot
  std::vector<int32_t> logprobs_;      // per slot: SamplingParams::logprobs
  BoundedQueue<ExecutorStep> steps_;
  BoundedQueue<StepResult> results_;
  std::thread thread_;
};

}  // namespace fathom
