// How long steps of decodes take, measured at start-up on decodes that nobody has asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/step_runner.h"
#include "scheduler/step_plan.h"
#include "speculation/draft_depth.h"
#include "tensor/device.h"

namespace fathom {

// How many decodes a runner with so many pages can be timed with; 0: it has no room for any.
int32_t MostTimedDecodes(const StepRunner& runner, int64_t num_pages);

// Of each size of batch up to `decodes` (DraftDepth::Sizes) with each number of drafts, all tokens
// of which are live; none of steps that `enqueue` refuses. `meet` is called before each of them. A
// fixed number of steps, and the same of every rank. The decodes have slots and pages of their own
// from 0 on, which the first requests open and write as any others: what is left there nobody
// reads. REQUIRES: MostTimedDecodes() at most, and one at least.
std::vector<StepTime> TimeDecodes(StepRunner& runner, Device& device, int32_t decodes,
                                  const std::function<bool(const StepPlan&)>& enqueue,
                                  const std::function<void()>& meet);

}  // namespace fathom
