// LogProbs for one logit vector.
#pragma once

#include "ops/ops.h"

namespace fathom {

// One logit vector of LogProbs, with room for `vocab` ids at `order`: the same code in every table
// on the CPU.
void LogProbsVector(const LogProbsArgs& a, int64_t vector, int32_t* order);

}  // namespace fathom
