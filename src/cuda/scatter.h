// Many small copies from and to the host by one kernel: a copy each would cost the device more than
// the bytes do, and what comes after it waits for another engine.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fathom {

struct SmallCopy {
  void* to = nullptr;  // memory of the host is pinned
  const void* from = nullptr;
  uint32_t bytes = 0;

  // Whether the order of the two would count.
  bool Collides(const SmallCopy& other) const {
    const auto meet = [](const void* a, uint32_t a_bytes, const void* b, uint32_t b_bytes) {
      const auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
      return x < y + b_bytes && y < x + a_bytes;
    };
    return meet(to, bytes, other.to, other.bytes) || meet(to, bytes, other.from, other.bytes) ||
           meet(from, bytes, other.to, other.bytes);
  }
};
struct SmallCopies {
  static constexpr int kMost = 32;
  static constexpr uint32_t kMostBytes = 16 << 10;  // of one
  SmallCopy items[kMost];
  int count = 0;
};

// Enqueues all of them. None collides with another.
cudaError_t LaunchScatter(const SmallCopies& copies, cudaStream_t stream);

}  // namespace fathom
