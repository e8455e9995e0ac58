// AdjustLogits for one row.
#pragma once

#include "ops/ops.h"

namespace fathom {

// One row of AdjustLogits: the same code in every table on the CPU.
void AdjustVector(const AdjustLogitsArgs& a, int64_t row);

}  // namespace fathom
