// Writes latents and keys to their pages.
//   formula:       page row of (slot, position) = latent, rope, rounded to the pages' types
//   data mapping:  a thread takes tokens
//   bytes, FLOPs:  reads 4 and writes 1 to 4 bytes a channel; none
//   accumulator:   none
//   expected time: [1, 576]: about a microsecond on one core; not measured
#include "ops/cpu_ops.h"
#include "ops/page_rows.h"

namespace fathom {

void CacheWriteCpu(OpContext& context, const CacheWriteArgs& a) {
  const TokenMap& map = a.tokens;
  const int64_t width = a.latent.dim(1) + a.rope.dim(1);
  Pool(context).ParallelFor(
      Live(map.live, a.latent.dim(0)), Grain(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t position = map.positions.As<int32_t>()[t];
          const int32_t* table = SlotPages(map.page_table, map.slots.As<int32_t>()[t]);
          const int32_t page = PageOf(table, map.page_table.dim(1), position, a.pages);
          StoreLatent(a.pages, page, position, a.latent.Row<float>(t));
          StoreRope(a.pages, page, position, a.rope.Row<float>(t));
        }
      });
}

}  // namespace fathom
