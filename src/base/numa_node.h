// Which CPUs lie near a device, and threads that run on them alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

inline constexpr int kMostCpus = 1 << 16;

// The CPUs of a list as Linux writes them ("0-3,8"; "" has none), ascending; nothing where it is
// not such a list, or names a CPU from kMostCpus on.
std::optional<std::vector<int>> ParseCpuList(std::string_view list);

// By the affinity of the calling thread, ascending.
std::vector<int> AllowedCpus();

struct NearCpus {
  std::vector<int> cpus;  // none: a thread stays where it may run
  std::string remark;     // for the log: "NUMA node 1, 48 CPUs", or why there are none
};
// Those of `allowed` that are of the NUMA node of a PCI device ("0000:1b:00.0", in any case).
// `system`: where sysfs is mounted.
NearCpus CpusNear(std::string_view pci_device, std::span<const int> allowed,
                  const std::string& system = "/sys");

// While it lives, the calling thread runs on `cpus` alone; threads that it starts meanwhile do so
// for good. Does nothing if there are none. Where the system refuses, warns.
class OnCpus {
 public:
  explicit OnCpus(std::span<const int> cpus);
  ~OnCpus();
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

 private:
  std::vector<int> before_;
};

}  // namespace fathom
