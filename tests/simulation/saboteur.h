// Reaches into scheduler, index and pool to do what they must not.
#pragma once

#include "simulation/fault.h"

namespace fathom {

class Scheduler;

// Does `fault` to a scheduler between two rounds, if it is one of its own and there is occasion.
void Sabotage(const Scheduler& honest, simulation::Fault fault);

}  // namespace fathom
