// Expanded attention over a chunk by tensor cores of any GPU from sm_80 on, for the published
// models' heads. No device code here: a plain function that enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/attend_expanded/row_piece.h"

namespace fathom {

inline constexpr int kChunkNope = 128, kChunkRope = 64, kChunkValue = 128;

// Heads of 128 + 64 and values of 128; q's tokens lie a multiple of 8 elements apart.
void LaunchAttendChunk(const RowPiece& piece, float scale, cudaStream_t stream);

}  // namespace fathom
