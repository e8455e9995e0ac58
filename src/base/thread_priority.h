// How much of a core a thread gets where others want it too.
#pragma once

#include <string_view>

namespace fathom {

// The calling thread gives way to others: each step of niceness takes a fifth of what it gets
// beside them, and it holds them up for little at a time. `which`: what such threads do, for a
// warning if the system does not allow it.
void LowerThisThread(int steps, std::string_view which);

}  // namespace fathom
