// Many small uploads by one kernel: a copy each would cost the device more than the bytes do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fathom {

struct SmallUpload {
  void* to = nullptr;
  const void* from = nullptr;  // pinned; aligned to 64 bytes
  uint32_t bytes = 0;
};
struct SmallUploads {
  static constexpr int kMost = 32;
  static constexpr uint32_t kMostBytes = 16 << 10;  // of one
  SmallUpload items[kMost];
  int count = 0;
};

// Enqueues all of them. Their destinations do not overlap.
void LaunchScatter(const SmallUploads& uploads, cudaStream_t stream);

}  // namespace fathom
