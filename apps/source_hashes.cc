#include "source_hashes.h"

#include "made_source_hashes.h"  // by each build

namespace fathom {

std::string_view CpuSources() {
  return FATHOM_CPU_SOURCES;
}

std::string_view AllSources() {
  return FATHOM_ALL_SOURCES;
}

}  // namespace fathom
