// What the host code of both products of many rows on Hopper shares, BF16 and FP8.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/check.h"

namespace fathom {

inline constexpr int kMaxGroups = 512;  // matrices of one launch

inline int64_t CeilDivide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

inline int64_t Multiprocessors() {
  static const int64_t count = [] {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device));
    return value;
  }();
  return count;
}

}  // namespace fathom
