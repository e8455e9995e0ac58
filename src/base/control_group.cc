#include "base/control_group.h"

#include <fmt/format.h>

#include <fstream>

namespace fathom {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> ControlGroupLines(const std::string& name) {
  const std::string root = "/sys/fs/cgroup";
  std::vector<std::string> lines = {FirstLine(root + "/" + name)};
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // version 2
    for (std::string group = line.substr(3); !group.empty(); group.resize(group.rfind('/'))) {
      lines.push_back(FirstLine(fmt::format("{}{}/{}", root, group, name)));
    }
  }
  return lines;
}

}  // namespace fathom
