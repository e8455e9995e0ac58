// What results on a CPU are results of.
#pragma once

#include <string_view>

namespace fathom {

// The hash of the sources that this binary was built from, those of CUDA left out
// (cmake/cpu_source_hash.cmake).
std::string_view CpuSources();

}  // namespace fathom
