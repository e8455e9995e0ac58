// How a process ends that does not get the memory it starts with.
#pragma once

#include <string>

namespace fathom {

// What OutOfMemory() tells beside: where the memory was to go. THREAD: before others allocate.
void SetMemoryPlan(std::string plan);

// Says on stderr what was refused, the plan, and what to lower, and ends the process with status 1.
// No bug, so that it leaves no core; and of start-up alone, so that there is nobody to tell later.
[[noreturn]] void OutOfMemory(const std::string& refused);

}  // namespace fathom
