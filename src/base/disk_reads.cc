#include "base/disk_reads.h"

#include <fstream>
#include <string>

namespace fathom {

std::optional<int64_t> DiskBytesRead() {
  std::ifstream io("/proc/self/io");  // lines of "name: number"
  std::string name;
  int64_t bytes = 0;
  while (io >> name >> bytes) {
    if (name == "read_bytes:") return bytes;
  }
  return std::nullopt;
}

}  // namespace fathom
