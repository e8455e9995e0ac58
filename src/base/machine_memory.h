// How much memory this process may have.
#pragma once

#include <cstdint>
#include <string_view>

namespace fathom {

// Bytes: the machine's, or what a container (control groups) or ulimit -v leave of them.
int64_t UsableMemoryBytes();

// "max", "9223372036854771712" and what is no number mean no limit: INT64_MAX. For tests.
int64_t MemoryLimit(std::string_view limit);

}  // namespace fathom
