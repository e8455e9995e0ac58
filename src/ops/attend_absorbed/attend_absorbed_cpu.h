// The kernel of absorbed attention on the CPU.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "tensor/dtype.h"

namespace fathom {

// The context is cut into pieces of so many positions, at absolute multiples.
inline constexpr int64_t kPiecePages = 4, kPiece = kPiecePages * kPageTokens;
// Heads that share a reading of a piece.
inline constexpr int64_t kHeadGroup = 16;

// A few heads of one token over one piece.
struct AttendPiece {
  const float *q_latent, *q_rope;  // of the first head
  int64_t q_latent_stride, q_rope_stride;
  int64_t heads;                                        // up to kHeadGroup
  const void *latent[kPiecePages], *rope[kPiecePages];  // of the pages
  const float* scales[kPiecePages];                     // of E4M3 latents, by token
  int64_t latent_stride, rope_stride;                   // between tokens, in elements
  DType latent_type;                                    // kF8E4M3: rope is BF16; else as rope
  int64_t keys;                                         // visible ones, from the first: 1..kPiece
  int64_t latent_dim, rope_dim;
  float scale;
  // Out, per head: sum over keys of exp(s - max) latent; max; sum over keys of exp(s - max).
  float* out;  // [heads, latent_dim]
  float *max, *sum;
  const AttendPiece* next;  // whose keys are fetched meanwhile; null: none
};
void Attend(const AttendPiece& piece);

}  // namespace fathom
