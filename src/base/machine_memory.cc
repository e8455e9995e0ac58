#include "base/machine_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/control_group.h"

namespace fathom {
namespace {

// The least limit of this process's control group and of those around it.
int64_t ControlGroupBytes() {
  int64_t least = MemoryLimit(FirstLine("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  for (const std::string& line : ControlGroupLines("memory.max")) {
    least = std::min(least, MemoryLimit(line));
  }
  return least;
}

// What ulimit -v leaves beside the address space that is in use already.
int64_t AddressSpaceBytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
  int64_t pages = 0;  // the first of several numbers
  std::ifstream("/proc/self/statm") >> pages;
  const int64_t used = pages * sysconf(_SC_PAGESIZE);
  return std::max<int64_t>(static_cast<int64_t>(limit.rlim_cur) - used, 0);
}

}  // namespace

int64_t MemoryLimit(std::string_view limit) {
  constexpr int64_t kNone = INT64_MAX - (1 << 20);  // version 1 says INT64_MAX, rounded to a page
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(limit.data(), limit.data() + limit.size(), bytes);
  return error == std::errc() && bytes > 0 && bytes < kNone ? bytes : INT64_MAX;
}

int64_t UsableMemoryBytes() {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min({physical, ControlGroupBytes(), AddressSpaceBytes()});
}

}  // namespace fathom
