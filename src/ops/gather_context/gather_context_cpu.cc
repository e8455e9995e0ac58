// The latents and keys of a range of positions as fp32.
//   formula:       latent[i], rope[i] = page row of position begin + i
//   data mapping:  a thread takes positions
//   bytes, FLOPs:  reads 2 or 4 and writes 4 bytes a channel; none
//   accumulator:   none
//   expected time: [512, 576]: 1.2 MB written at bandwidth; not measured
#include <algorithm>

#include "ops/cpu_ops.h"
#include "ops/page_rows.h"

namespace fathom {

static void WidenRow(const TensorView& plane, int32_t page, int64_t position, float* to) {
  const int64_t at = page * plane.stride(0) + position % kPageTokens * plane.stride(1);
  const int64_t width = plane.dim(2);
  if (plane.dtype() == DType::kBF16) {
    const BF16* from = plane.As<BF16>() + at;
    for (int64_t i = 0; i < width; ++i) to[i] = ToFloat(from[i]);
  } else {
    std::copy_n(plane.As<float>() + at, width, to);
  }
}

void GatherContextCpu(OpContext& context, const GatherContextArgs& a) {
  const int64_t width = a.latent.dim(1) + a.rope.dim(1);
  Pool(context).ParallelFor(a.latent.dim(0), Grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t page =
          PageOf(a.page_table.As<int32_t>(), a.page_table.dim(0), a.begin + i, a.pages);
      WidenRow(a.pages.latent, page, a.begin + i, a.latent.Row<float>(i));
      WidenRow(a.pages.rope, page, a.begin + i, a.rope.Row<float>(i));
    }
  });
}

}  // namespace fathom
