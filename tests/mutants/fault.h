// Which of the faults of faults.py this process has: run.py puts it into a copy of the sources.
#pragma once

#include <cstdlib>

namespace fathom {

// THREAD: any.
inline bool Fault(int number) {
  static const int chosen = [] {
    const char* given = std::getenv("FATHOM_FAULT");
    return given == nullptr ? 0 : std::atoi(given);
  }();
  return chosen == number;
}

}  // namespace fathom
