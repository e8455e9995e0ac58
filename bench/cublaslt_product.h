// The same products by cuBLASLt, to compare with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fathom::bench {

enum class LibraryFormat {
  kBf16,
  kFp8,        // a scale per tensor
  kFp8Blocks,  // a scale per 128 channels of x and per 128x128 of W, as ours
};

// x [m, k] W[n, k]^T -> BF16 [m, n]: the fastest of the library's first algorithms.
class LibraryProduct {
 public:
  LibraryProduct(LibraryFormat format, int64_t m, int64_t n, int64_t k);
  ~LibraryProduct();
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;

  // How many algorithms the library offers; 0: it cannot.
  int algorithms() const;
  // The scales are not read for kBf16.
  struct Data {
    const void* x = nullptr;
    const float* x_scales = nullptr;
    const void* w = nullptr;
    const float* w_scales = nullptr;
    void* out = nullptr;
  };
  // Whether it could.
  bool Launch(int algorithm, const Data& data, cudaStream_t stream) const;

 private:
  struct State;
  State* state_;
};

}  // namespace fathom::bench
