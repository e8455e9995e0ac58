#include "cpu_sources.h"

#include "cpu_source_hash.h"  // made by each build

namespace fathom {

std::string_view CpuSources() {
  return FATHOM_CPU_SOURCES;
}

}  // namespace fathom
