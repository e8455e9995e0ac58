// Plans as text, to read.
#pragma once

#include <string>

#include "engine/executor.h"
#include "scheduler/step_plan.h"

namespace fathom::simulation {

std::string ToString(const StepPlan& plan);      // a line for each opening and each row
std::string ToString(const StepResult& result);  // one line

}  // namespace fathom::simulation
