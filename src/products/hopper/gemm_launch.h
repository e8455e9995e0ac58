// What the host code of both products of many tokens on Hopper shares, BF16 and FP8.
#pragma once

#include <cstdint>

#include "cuda/gpu.h"

namespace fathom {

inline constexpr int kMaxGroups = 512;  // matrices of one launch

inline int64_t CeilDivide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Of the GPU that this thread drives.
inline int64_t Multiprocessors() {
  return Gpu::OfThread().multiprocessors();
}

}  // namespace fathom
