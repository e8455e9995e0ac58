// Expanded attention on Hopper: AttendExpanded (ops.h) for nope 128, rope 64 and vdim 128, by TMA
// and wgmma. No device code here: a plain function that enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "ops/context_piece.h"

namespace fathom {

inline constexpr int kFlashNope = 128, kFlashRope = 64, kFlashValue = 128;

struct FlashAttendParams {
  const void* q = nullptr;  // BF16 [tokens, heads, 192], aligned to 16 bytes
  int64_t q_stride = 0;     // elements from token to token, a multiple of 8; 0: they are dense
  const int32_t* positions = nullptr;  // device memory [tokens]
  const void* kv = nullptr;            // BF16 [context, heads, 256], dense, aligned to 16 bytes
  const void* rope = nullptr;          // BF16 [context, 64], dense, aligned to 16 bytes
  int32_t tokens = 0;
  int32_t heads = 0;
  int32_t context = 0;
  std::span<const ContextPiece> pieces;
  float scale = 1;       // above 0
  void* out = nullptr;   // BF16 [tokens, heads, 128], dense; read where a piece begins after 0
  float* lse = nullptr;  // [tokens, heads], likewise
};

// Enqueues one kernel on the current device (compute capability 9.0). It neither allocates nor
// synchronises, and needs no work space.
void LaunchFlashAttend(const FlashAttendParams& params, cudaStream_t stream);

}  // namespace fathom
