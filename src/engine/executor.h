// Runs steps on a device, in order, behind the engine's back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/messages.h"
#include "scheduler/step_plan.h"

namespace fathom {

struct RowResult {
  // kInternal when the row's logits hold NaN: that request ends, the process does not. What a
  // decode brought before that stands, as it would without drafts.
  Status status;
  std::vector<GeneratedToken> tokens;          // as RowOutcome::tokens
  int32_t drafts = 0;                          // that a decode verified; one less of `tokens` stood
  std::vector<TokenId> proposed;               // of a masked row: what its next one verifies first
  std::vector<TokenLogprobs> prompt_logprobs;  // if asked for: of the successors of its tokens, as
                                               // far as they lie within the prompt
};

struct StepResult {
  uint64_t step = 0;
  std::vector<RowResult> rows;  // as StepPlans::Rows(), if the status is OK
  Status status{};  // why the device, or a rank, failed: then it does nothing more, and so do later
                    // steps
};

// THREAD: the engine's.
class Executor {
 public:
  virtual ~Executor() = default;
  // Enqueues and returns. A step without rows moves those before it on, and is not waited for; with
  // stages, a step comes to its end once as many others follow as there are stages after the first.
  virtual void Submit(StepPlans plans) = 0;
  // Of each group, for a step that was submitted and has masked rows: once, in the order of steps,
  // when all steps before it have been waited for. Until then they are not sampled from.
  virtual void SubmitMasks(std::vector<StepMasks> groups) = 0;
  virtual StepResult Wait() = 0;  // of the oldest step with rows not yet waited for
  // THREAD: any. Of ranks of other hosts, what they said last.
  virtual std::vector<RankStats> Ranks() const { return {}; }
};

}  // namespace fathom
