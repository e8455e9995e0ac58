// The latents and keys of ranges of positions as fp32.
//   formula:       (latent, rope)[at + i] = what the page has at position begin + i, of each piece
//   data mapping:  a thread takes positions
//   bytes, FLOPs:  reads 1 to 4 and writes 4 bytes a channel; none
//   accumulator:   none
//   expected time: [512, 576]: 1.2 MB written at bandwidth; not measured
#include <algorithm>

#include "ops/cpu_ops.h"
#include "ops/page_tokens.h"

namespace fathom {

// `scale`: of E4M3 codes.
static void Widen(const TensorView& place, float scale, float* to) {
  const int64_t width = place.dim(1);
  if (place.dtype() == DType::kF8E4M3) {
    const E4M3* from = place.As<E4M3>();
    for (int64_t i = 0; i < width; ++i) to[i] = ToFloat(from[i]) * scale;
  } else if (place.dtype() == DType::kBF16) {
    const BF16* from = place.As<BF16>();
    for (int64_t i = 0; i < width; ++i) to[i] = ToFloat(from[i]);
  } else {
    std::copy_n(place.As<float>(), width, to);
  }
}

static void GatherPosition(const GatherContextArgs& a, const ContextPiece& piece, int64_t i) {
  const int64_t position = piece.begin + i, at = piece.at + i;
  const int32_t page =
      PageOf(a.page_table.As<int32_t>(piece.slot), a.page_table.dim(1), position, a.pages);
  const bool scaled = a.pages.scales.rank() > 0;
  const float scale = scaled ? a.pages.scales.As<float>(page)[position % kPageTokens] : 1.0f;
  Widen(PlaceInPage(a.pages.latent, page, position), scale, a.latent.As<float>(at));
  Widen(PlaceInPage(a.pages.rope, page, position), 1, a.rope.As<float>(at));
}

void GatherContextCpu(OpContext& context, const GatherContextArgs& a) {
  const int64_t width = a.latent.dim(1) + a.rope.dim(1);
  for (const ContextPiece& piece : a.pieces) {
    Pool(context).ParallelFor(piece.count, Grain(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) GatherPosition(a, piece, i);
    });
  }
}

}  // namespace fathom
