// What this process has read from disk.
#pragma once

#include <cstdint>
#include <optional>

namespace fathom {

// Bytes that had to come from disk or over the network, not out of the page cache, for all threads;
// absent where the kernel does not count them.
std::optional<int64_t> DiskBytesRead();

}  // namespace fathom
