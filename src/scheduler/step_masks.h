// A step's masks as a message of their own, for the hosts that do not compute them. It follows the
// plan, and never goes with it: masks need the tokens of the step before, and a rank that waited
// for them before its forward pass would hold that step up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "scheduler/step_plan.h"

namespace fathom {

std::string Serialize(const StepMasks& masks);  // msgpack; words are little-endian

// What a slot has room for.
struct SlotMaskRoom {
  int64_t vocab = 0;       // tokens that a mask says something about
  int32_t max_drafts = 0;  // a mask for each, and one for what follows the last token
};

// Masks of `plan`, the part that they were sent for: of each masked row none, or whole masks, as
// many as were worth making, which may be more than the row has drafts. kDataLoss for what is
// malformed, of another plan, or more than a slot holds, found out before memory is taken for it.
Result<StepMasks> ParseStepMasks(std::string_view bytes, const StepPlan& plan,
                                 const SlotMaskRoom& room);

}  // namespace fathom
