// Finds, reads and writes what pages hold of a token, on CPUs.
#pragma once

#include <span>

#include "ops/ops.h"
#include "quant/e4m3.h"

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
  return page_table.As<int32_t>(slot);
}

// What is at `position` within `page` of a plane.
inline TensorView PlaceInPage(const TensorView& plane, int32_t page, int64_t position) {
  return plane.At(page).Slice(0, position % kPageTokens, position % kPageTokens + 1);
}

// The latent of `position`, which lies in `page`, as fp32.
inline void LoadLatent(const KvPages& pages, int32_t page, int64_t position, float* to) {
  const TensorView place = PlaceInPage(pages.latent, page, position);
  if (place.dtype() == DType::kF8E4M3) {
    const float scale = pages.scales.As<float>(page)[position % kPageTokens];
    for (int64_t i = 0; i < place.dim(1); ++i) to[i] = ToFloat(place.As<E4M3>()[i]) * scale;
  } else {
    for (int64_t i = 0; i < place.dim(1); ++i) to[i] = LoadFloat(place, 0, i);
  }
}
inline void LoadRope(const KvPages& pages, int32_t page, int64_t position, float* to) {
  const TensorView place = PlaceInPage(pages.rope, page, position);
  for (int64_t i = 0; i < place.dim(1); ++i) to[i] = LoadFloat(place, 0, i);
}

// Rounds to the type of a plane without scales.
inline void StorePlain(const TensorView& place, const float* from) {
  for (int64_t i = 0; i < place.dim(1); ++i) {
    if (place.dtype() == DType::kBF16) {
      place.As<BF16>()[i] = ToBF16(from[i]);
    } else {
      place.As<float>()[i] = from[i];
    }
  }
}
inline void StoreLatent(const KvPages& pages, int32_t page, int64_t position, const float* from) {
  const TensorView place = PlaceInPage(pages.latent, page, position);
  if (place.dtype() == DType::kF8E4M3) {
    const std::span<const float> values(from, static_cast<size_t>(place.dim(1)));
    pages.scales.As<float>(page)[position % kPageTokens] =
        QuantizeRun(values, /*scale_ue8m0=*/true, &place.As<E4M3>()->bits);
  } else {
    StorePlain(place, from);
  }
}
inline void StoreRope(const KvPages& pages, int32_t page, int64_t position, const float* from) {
  StorePlain(PlaceInPage(pages.rope, page, position), from);
}

}  // namespace fathom
