// The latents and keys of ranges of positions as fp32.
//   formula:       (latent, rope)[at + i] = page row of position begin + i, of each piece
//   data mapping:  a thread takes positions
//   bytes, FLOPs:  reads 1 to 4 and writes 4 bytes a channel; none
//   accumulator:   none
//   expected time: [512, 576]: 1.2 MB written at bandwidth; not measured
#include <algorithm>

#include "ops/cpu_ops.h"
#include "ops/page_rows.h"

namespace fathom {

// `scale`: of E4M3 codes.
static void WidenRow(const TensorView& row, float scale, float* to) {
  const int64_t width = row.dim(1);
  if (row.dtype() == DType::kF8E4M3) {
    const E4M3* from = row.As<E4M3>();
    for (int64_t i = 0; i < width; ++i) to[i] = ToFloat(from[i]) * scale;
  } else if (row.dtype() == DType::kBF16) {
    const BF16* from = row.As<BF16>();
    for (int64_t i = 0; i < width; ++i) to[i] = ToFloat(from[i]);
  } else {
    std::copy_n(row.As<float>(), width, to);
  }
}

static void GatherPosition(const GatherContextArgs& a, const ContextPiece& piece, int64_t i) {
  const int64_t position = piece.begin + i, at = piece.at + i;
  const int32_t page =
      PageOf(a.page_table.Row<int32_t>(piece.slot), a.page_table.dim(1), position, a.pages);
  const bool scaled = a.pages.scales.rank() > 0;
  const float scale = scaled ? a.pages.scales.Row<float>(page)[position % kPageTokens] : 1.0f;
  WidenRow(PageRow(a.pages.latent, page, position), scale, a.latent.Row<float>(at));
  WidenRow(PageRow(a.pages.rope, page, position), 1, a.rope.Row<float>(at));
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
