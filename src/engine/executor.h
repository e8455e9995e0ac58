// Runs steps on a device, in order, behind the engine's back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/messages.h"
#include "sampling/params.h"
#include "scheduler/step_plan.h"

namespace fathom {

// A request enters a slot: sets the slot's device-resident state before the step's rows run.
struct SlotOpening {
  SlotId slot{};
  SamplingParams sampling;
  std::vector<TokenId> stop_tokens;  // not sampled while fewer than min_tokens are generated
  int32_t min_tokens = 0;
  int32_t prompt_logprobs = -1;
  std::vector<TokenId> prompt;     // for penalties
  std::vector<TokenId> generated;  // before a preemption; for penalties and min_tokens
};

struct ExecutorStep {
  StepPlan plan;
  std::vector<SlotOpening> openings;
};

struct RowResult {
  // kInternal when the row's logits hold NaN: that request ends, the process does not.
  Status status;
  GeneratedToken token;                        // if the row samples
  std::vector<TokenLogprobs> prompt_logprobs;  // if asked for: of the successors of its tokens, as
                                               // far as they lie within the prompt
};

struct StepResult {
  uint64_t step = 0;
  std::vector<RowResult> rows;  // as the plan's
};

// THREAD: the engine's.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void Submit(ExecutorStep step) = 0;  // enqueues and returns
  virtual StepResult Wait() = 0;               // of the oldest step not yet waited for
};

}  // namespace fathom
