// The sources that this binary was built from, as hashes (cmake/source_hashes.cmake).
#pragma once

#include <string_view>

namespace fathom {

// Those of CUDA left out: what results on a CPU are results of.
std::string_view CpuSources();
// Those of CUDA too.
std::string_view AllSources();

}  // namespace fathom
