#include "base/numa_node.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>

#include "base/control_group.h"
#include "base/log.h"

namespace fathom {
namespace {

// As large as any kernel's, which refuses those that are shorter than its own.
using Mask = std::vector<cpu_set_t>;
Mask EmptyMask() {
  return Mask(kMostCpus / CPU_SETSIZE);  // of zeros
}
size_t Bytes(const Mask& mask) {
  return mask.size() * sizeof(cpu_set_t);
}

// Takes a number from the front of `text`.
std::optional<int> TakeNumber(std::string_view& text) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number >= kMostCpus) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return static_cast<int>(number);
}

bool RunOn(std::span<const int> cpus) {
  Mask mask = EmptyMask();
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), Bytes(mask), mask.data());
  if (sched_setaffinity(0, Bytes(mask), mask.data()) == 0) return true;
  LOG_WARNING("the system does not let a thread run on CPUs near its GPU: {}", strerror(errno));
  return false;
}

}  // namespace

std::optional<std::vector<int>> ParseCpuList(std::string_view list) {
  std::vector<int> cpus;
  while (!list.empty()) {
    const std::optional<int> first = TakeNumber(list);
    if (!first || (!cpus.empty() && *first <= cpus.back())) return std::nullopt;
    std::optional<int> last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      last = TakeNumber(list);
      if (!last || *last < *first) return std::nullopt;
    }
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    if (list.empty()) break;
    if (!list.starts_with(',') || list.size() == 1) return std::nullopt;
    list.remove_prefix(1);
  }
  return cpus;
}

std::vector<int> AllowedCpus() {
  Mask mask = EmptyMask();
  std::vector<int> cpus;
  if (sched_getaffinity(0, Bytes(mask), mask.data()) != 0) return cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<size_t>(cpu), Bytes(mask), mask.data())) cpus.push_back(cpu);
  }
  return cpus;
}

NearCpus CpusNear(std::string_view pci_device, std::span<const int> allowed,
                  const std::string& system) {
  std::string device(pci_device);  // CUDA writes it in upper case, sysfs in lower
  std::ranges::transform(device, device.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string line =
      FirstLine(fmt::format("{}/bus/pci/devices/{}/numa_node", system, device));
  std::string_view rest = line;
  const std::optional<int> node = TakeNumber(rest);  // -1 where there is none
  if (!node || !rest.empty()) return {.cpus = {}, .remark = "any CPU: no NUMA node is said"};
  const auto of_node =
      ParseCpuList(FirstLine(fmt::format("{}/devices/system/node/node{}/cpulist", system, *node)));
  if (!of_node) {
    return {.cpus = {},
            .remark = fmt::format("any CPU: those of NUMA node {} are not said", *node)};
  }
  NearCpus near;
  std::ranges::set_intersection(*of_node, allowed, std::back_inserter(near.cpus));
  near.remark = near.cpus.empty()
                    ? fmt::format("any CPU: this process may use none of NUMA node {}", *node)
                    : fmt::format("NUMA node {}, {} of its {} CPUs", *node, near.cpus.size(),
                                  of_node->size());
  return near;
}

OnCpus::OnCpus(std::span<const int> cpus) {
  if (cpus.empty()) return;
  before_ = AllowedCpus();
  if (!RunOn(cpus)) before_.clear();
}

OnCpus::~OnCpus() {
  if (!before_.empty()) RunOn(before_);
}

}  // namespace fathom
