// Finds and reads the rows of pages, for the reference table.
#pragma once

#include "ops/ops.h"

namespace fathom {

// The entry of a page table for `position`. `table` holds `entries` pages.
inline int32_t PageOf(const int32_t* table, int64_t entries, int64_t position,
                      const KvPages& pages) {
  CHECK(position >= 0 && position / kPageTokens < entries, "position {} of {} pages", position,
        entries);
  const int32_t page = table[position / kPageTokens];
  CHECK(page >= 0 && page < pages.latent.dim(0), "page {} of a pool of {}", page,
        pages.latent.dim(0));
  return page;
}

// The slot's entries of a page table [slots, max_pages].
inline const int32_t* SlotPages(const TensorView& page_table, int32_t slot) {
  CHECK(slot >= 0 && slot < page_table.dim(0), "slot {} of {}", slot, page_table.dim(0));
  return page_table.Row<int32_t>(slot);
}

// Reads the row of `position` within `page` of a plane as fp32.
inline void LoadPageRow(const TensorView& plane, int32_t page, int64_t position, float* to) {
  const TensorView rows = plane.At(page);
  for (int64_t i = 0; i < plane.dim(2); ++i) to[i] = LoadFloat(rows, position % kPageTokens, i);
}

inline void StorePageRow(const TensorView& plane, int32_t page, int64_t position,
                         const float* from) {
  const int64_t at = page * plane.stride(0) + position % kPageTokens * plane.stride(1);
  for (int64_t i = 0; i < plane.dim(2); ++i) {
    if (plane.dtype() == DType::kBF16) {
      plane.As<BF16>()[at + i] = ToBF16(from[i]);
    } else {
      plane.As<float>()[at + i] = from[i];
    }
  }
}

}  // namespace fathom
