#include "cpu/cpu_count.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "base/control_group.h"
#include "base/numa_node.h"

namespace fathom {
namespace {

// The smallest quota of this process's control group and of those around it; 0 for none.
int ControlGroupCpus() {
  const std::string root = "/sys/fs/cgroup/cpu/";  // of version 1
  std::vector<std::string> lines = ControlGroupLines("cpu.max");
  lines.push_back(FirstLine(root + "cpu.cfs_quota_us") + " " +
                  FirstLine(root + "cpu.cfs_period_us"));
  int cpus = 0;
  for (const std::string& line : lines) {
    const int quota = QuotaCpus(line);
    if (quota > 0) cpus = cpus == 0 ? quota : std::min(cpus, quota);
  }
  return cpus;
}

}  // namespace

int QuotaCpus(std::string_view cpu_max) {
  const size_t space = cpu_max.find(' ');
  if (space == std::string_view::npos) return 0;
  const auto parse = [](std::string_view text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : 0;
  };
  const int64_t quota = parse(cpu_max.substr(0, space)), period = parse(cpu_max.substr(space + 1));
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((quota - 1) / period + 1, 1 << 20));
}

int UsableCpus() {
  const int affinity = std::max(static_cast<int>(AllowedCpus().size()), 1);
  const int quota = ControlGroupCpus();
  return quota > 0 ? std::min(affinity, quota) : affinity;
}

}  // namespace fathom
