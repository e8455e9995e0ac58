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
  // Whether it could. The scales are not read for kBf16.
  bool Launch(int algorithm, const void* x, const float* x_scales, const void* w,
              const float* w_scales, void* out, cudaStream_t stream) const;

 private:
  struct State;
  State* state_;
};

}  // namespace fathom::bench
