// Work that all ranks of a host do at the same time, before their threads are there.
#pragma once

#include <functional>

#include "base/status.h"

namespace fathom {

// Calls body(rank) for each of `ranks`, on a thread for each (of one: on this thread), and waits.
// Returns the first rank's status that is not OK.
Status OnRanks(int ranks, const std::function<Status(int rank)>& body);

}  // namespace fathom
