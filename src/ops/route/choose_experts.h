// The choice of experts from their logits: the same code in every table on the CPU.
#pragma once

#include "ops/ops.h"

namespace fathom {

// Work space of one token.
struct RouteScratch {
  float* scores;   // [experts]
  float* choice;   // [experts]: score + bias, -inf outside the chosen groups
  float* groups;   // [n_group]
  int32_t* order;  // [experts]
};

// Writes ids and weights of token t; `scratch.scores` holds the logits, x . gate.
void ChooseExperts(const RouteArgs& a, int64_t t, const RouteScratch& scratch);

}  // namespace fathom
