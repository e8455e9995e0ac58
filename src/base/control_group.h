// What the control groups of this process say: the limits of a container.
#pragma once

#include <string>
#include <vector>

namespace fathom {

// The first line of a file; "" if there is none.
std::string FirstLine(const std::string& path);

// The first lines of the file `name` of this process's control group and of those around it
// (version 2).
std::vector<std::string> ControlGroupLines(const std::string& name);

}  // namespace fathom
