// The engine: takes requests, plans steps ahead of their results, hands out tokens.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/executor.h"
#include "engine/messages.h"
#include "scheduler/scheduler.h"
#include "speculation/draft_depth.h"

namespace fathom {

struct EngineOptions {
  SchedulerOptions scheduler;
  int32_t max_queue = 256;     // requests waiting, beyond one for each slot
  double queue_timeout_s = 0;  // that one may wait to enter the batch; 0: without end
  bool adapts_drafts = false;  // to what they bring (speculation/draft_depth.h); else max_drafts
  int32_t vocab_size = 0;      // prompt and stop tokens must be below; 0: any
  std::vector<StepTime> step_times = {};  // measured before the first step, if drafts adapt
};

class Engine final : public EngineClient {
 public:
  // THREAD: called on the engine's thread, in order; must not block.
  using OutputCallback = std::function<void(std::vector<RequestOutput>)>;

  Engine(EngineOptions options, std::unique_ptr<Executor> executor, const Clock* clock,
         OutputCallback on_output);
  ~Engine() override;  // cancels what is left and joins

  void Start();

  // THREAD: any.
  // OK until the device fails. Then every request ends with kError and this status, none is taken
  // any more, and `callback` is called once, on the engine's thread; it must neither block nor call
  // the engine.
  Status status() const override;
  void OnFailure(std::function<void()> callback);  // null: none, from the return on
  // As if the device had failed, for this reason. THREAD: any.
  void Abandon(Status why);

  Status Submit(GenerateRequest request) override;
  void Cancel(RequestId id) override;
  void ResetPrefixCache() override;
  bool HasRoom(int requests) const override;
  EngineStats Stats() const override;
  int32_t max_model_len() const override;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace fathom
