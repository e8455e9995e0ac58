// AdjustLogits for one logit vector.
#pragma once

#include "ops/ops.h"

namespace fathom {

// One logit vector of AdjustLogits: the same code in every table on the CPU.
void AdjustVector(const AdjustLogitsArgs& a, int64_t vector);

}  // namespace fathom
