// Expanded attention over a chunk by tensor cores of any GPU from sm_80 on, for the published
// models' heads. No device code here: a plain function that enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

inline constexpr int kChunkNope = 128, kChunkRope = 64, kChunkValue = 128;

// As AttendExpandedArgs (ops.h).
struct AttendChunkParams {
  const BF16* q = nullptr;             // [tokens, heads, 192]
  int64_t q_stride = 0;                // elements from token to token; a multiple of 8
  const BF16* kv = nullptr;            // [context, heads, 256]
  const BF16* rope = nullptr;          // [context, 64]; all aligned to 16 bytes
  const int32_t* positions = nullptr;  // [tokens]
  int64_t tokens = 0, heads = 0, context = 0, context_begin = 0;
  float scale = 1;
  bool first = true;
  BF16* out = nullptr;   // [tokens, heads, 128]
  float* lse = nullptr;  // [tokens, heads]
};
void LaunchAttendChunk(const AttendChunkParams& params, cudaStream_t stream);

}  // namespace fathom
