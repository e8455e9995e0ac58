// LogProbs for one row.
#pragma once

#include "ops/ops.h"

namespace fathom {

// One row of LogProbs, with room for `vocab` ids at `order`: the same code in every table on the
// CPU.
void LogProbsVector(const LogProbsArgs& a, int64_t row, int32_t* order);

}  // namespace fathom
