// How many cores this process may use.
#pragma once

#include <string_view>

namespace fathom {

// At least 1: the cores of the affinity mask, fewer if a control group's quota allows less.
int UsableCpus();

// Cores that a control group's cpu.max ("200000 100000", "max 100000") allows, rounded up; 0 where
// it sets no bound or is not to be understood.
int QuotaCpus(std::string_view cpu_max);

}  // namespace fathom
