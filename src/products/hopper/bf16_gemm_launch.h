// What the host code of the BF16 product of many tokens and its kernels say to each other.
#pragma once

#include <cuda.h>

#include "products/hopper/bf16_gemm.h"
#include "products/hopper/gemm_launch.h"

namespace fathom::bf16_gemm {

constexpr int kChunkBytes = 2 * kBf16Chunk;  // of a stage's tile rows: one of the 128-byte swizzle

// What a kernel needs besides the tensor maps.
struct Args {
  const int32_t* live;    // [1]: tokens of every group, where `counts` is null
  const int32_t* counts;  // [groups]
  const int32_t* begins;  // [groups], or null: 0
  void* out;              // BF16 or F32
  int64_t out_stride, out_head_stride;
  int32_t groups, capacity;
  int32_t channels;  // of the output
  int32_t chunks;    // of K
  int32_t x_box_tokens;
  int32_t across;         // tiles of a cluster beside each other
  bool read_once;         // no two tiles are expected to read the same weights
  bool counts_are_there;  // when the kernel before allows this one
  bool f32;
};

struct Maps {
  CUtensorMap x, weights;
};

}  // namespace fathom::bf16_gemm
