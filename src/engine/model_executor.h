// Runs a model's steps on a thread of their own, so that the engine plans while the device works.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/executor.h"
#include "engine/recorded_sizes.h"
#include "engine/step_runner.h"
#include "engine/step_watch.h"
#include "speculation/draft_depth.h"

namespace fathom {

struct ModelExecutorOptions {
  int64_t num_pages = 0;
  int64_t slots = 0;          // SchedulerOptions::max_num_seqs
  int32_t max_in_flight = 2;  // SchedulerOptions::depth
  // Whether steps of decodes are timed, where steps are recorded: for drafts that adapt.
  bool time_steps = false;
  // Of several ranks: waits until all are here. Called between laying out, warming up, recording,
  // timing and the first step: none may lay out memory or record while another's kernels wait for
  // it.
  std::function<void()> meet;
  // A step that a GPU has not ended by then never will, be it recorded or run: the device has
  // failed. The longest steps that were measured take some seconds. Ranks on CPUs wait no longer
  // than that for each other.
  double step_timeout_s = 120;
  // Of several ranks: called with why once this one's device has failed, maybe several times.
  std::function<void(const Status&)> on_failure;
};

// The steps that were recorded, to be replayed: their number, and what that took.
struct RecordedSteps {
  int64_t steps = 0;
  int64_t bytes = 0;  // of the device's memory
  double seconds = 0;
  // If asked for: of each size of batch (DraftDepth::Sizes) with each number of drafts.
  std::vector<StepTime> times;
  double timing_seconds = 0;  // that it took to find these out
};

class ModelExecutor final : public Executor {
 public:
  // `model` and `device` must outlive the executor, which is the only one to use them.
  ModelExecutor(Model& model, Device& device, const ModelExecutorOptions& options);
  // A thread that does not come back from a step of a device that has failed ends the process.
  ~ModelExecutor() override;

  void Submit(StepPlans plans) override;  // REQUIRES: of one group
  void SubmitMasks(std::vector<StepMasks> groups) override;
  StepResult Wait() override;  // once the device has failed, soon
  std::vector<RankStats> Ranks() const override;

  const RecordedSteps& recorded() const { return recorded_; }

 private:
  // A row whose results the host awaits.
  struct AwaitedRow {
    bool samples = false, is_decode = false, masked = false;
    SlotId slot{};
    std::shared_ptr<const RequestParams> params;
  };
  // Log-probabilities of some of a row's prompt tokens.
  struct PromptPass {
    size_t row;  // of the plan
    int32_t top;
    Sampler::PassLogprobs logprobs;
  };
  // A step that the device works on.
  struct Enqueued {
    StepResult result;
    std::vector<AwaitedRow> rows;  // of the plan
    // The most that any row that samples wants, if one does.
    std::optional<Sampler::LogprobWidths> logprob_widths;
    Sampler::Drawn drawn;
    StepRunner::SlotDrafts proposed;              // if any row is masked: masks follow drafts
    std::vector<Sampler::PassLogprobs> logprobs;  // of each pass, if any row wants them
    std::vector<PromptPass> prompt_passes;
    uint64_t mark = 0;
    std::chrono::steady_clock::time_point since;  // when it was enqueued
    int64_t tokens = 0;                           // of the plan
  };

  // A plan on its way through the pipeline's stages, all of which are told of it at once.
  struct Passing {
    StepPlan plan;
    const BatchCapacity* size = nullptr;  // that it is recorded in, if it is
    const StagedStep* staged = nullptr;   // once it has come to this stage; null if nobody has rows
    TensorView hidden;                    // not set where the pass is replayed
    Enqueued step;
  };

  void Loop();
  void CountBusy();  // up to now
  // Records the steps of every size once, with no live row, and times what is replayed.
  void WarmUp(const std::function<void()>& meet, StepWatch& watch);
  // Each stage is a step behind the one before it. So with a plan comes, for this stage, the pass
  // of one that came before, and the end of one that the last stage has drawn from meanwhile.
  void Enqueue(StepPlan plan);
  void EnqueueForward(Passing& passing);
  void EnqueueSampling(Passing& passing);
  // What was staged, recorded per size of the step and place: the forward pass, and apart from it
  // sampling and commit, so that masks may come between them.
  uint64_t KeyOf(const Passing& passing) const;
  void RunRecorded(const StepPlan& plan, const BatchCapacity& size);  // all of it
  void ForwardRecorded(Passing& passing);
  void SampleRecorded(const Passing& passing);
  StepResult Finish(Enqueued& step);
  // Waits until it has ended, and hands its results out.
  void FinishOldest();
  // Waits for the masks of a plan's rows, if it has any, and uploads them. Results of the steps
  // before it are handed out first, as the masks are made from them.
  void AwaitMasks(const StepPlan& plan);
  // Gives a step up that has not ended in time.
  void Watch(const Enqueued& step);
  void TakeDrawn(const Enqueued& step, size_t row, RowResult& result) const;
  // The smallest recorded size that holds the step, for every group alike; null if there is none,
  // or if something in it cannot be replayed.
  const BatchCapacity* RecordedSize(const StepShape& shape) const;
  void EnqueuePromptLogprobs(const StepPlan& plan, const TensorView& hidden,
                             std::vector<PromptPass>& passes);
  const std::shared_ptr<const RequestParams>& ParamsOf(SlotId slot) const {
    return params_[static_cast<size_t>(Raw(slot))];
  }

  Device& device_;
  const RankStats rank_;  // but for what it has done, which follows
  std::atomic<uint64_t> steps_ended_{0}, busy_ns_{0};
  std::chrono::steady_clock::time_point busy_since_;
  StepRunner runner_;
  std::vector<std::shared_ptr<const RequestParams>> params_;  // of each slot's request
  std::vector<BatchCapacity> sizes_;  // that steps are padded to: RecordedSizes(); empty: are not
  RecordedSteps recorded_;
  const size_t stage_, stages_;
  std::deque<Passing> passing_;  // `stages` at most, oldest first
  std::deque<Enqueued> enqueued_;
  const size_t max_in_flight_;
  const std::chrono::duration<double> step_timeout_;
  const std::function<void(const Status&)> on_failure_;
  const int32_t timed_decodes_;  // at start-up, at the most
  BoundedQueue<StepPlan> steps_;
  BoundedQueue<StepMasks> masks_;
  BoundedQueue<StepResult> results_;
  std::promise<void> warm_;  // once steps may come
  std::promise<void> ended_;
  std::thread thread_;
};

}  // namespace fathom
