// Finds the rows of pages, for kernels.
#pragma once

#include "ops/cuda_kernels.cuh"

namespace fathom::kernels {

// Both planes of a layer's pages, of T = float or BF16.
template <class T>
struct Pages {
  T* latent;
  T* rope;
  int64_t latent_stride, rope_stride;  // elements from page to page
  int64_t latent_dim, rope_dim, count;

  __device__ T* Latent(int32_t page, int64_t position) const {
    return latent + page * latent_stride + position % kPageTokens * latent_dim;
  }
  __device__ T* Rope(int32_t page, int64_t position) const {
    return rope + page * rope_stride + position % kPageTokens * rope_dim;
  }
};
template <class T>
Pages<T> PagesOf(const KvPages& pages) {
  return {Data<T>(pages.latent), Data<T>(pages.rope), pages.latent.stride(0), pages.rope.stride(0),
          pages.latent.dim(2),   pages.rope.dim(2),   pages.latent.dim(0)};
}

// The page of a position in one slot's table.
template <class T>
__device__ int32_t PageOf(const int32_t* table, int64_t max_pages, int64_t position,
                          const Pages<T>& pages) {
  DEVICE_CHECK(position >= 0 && position / kPageTokens < max_pages, "position beyond the table",
               position);
  const int32_t page = table[position / kPageTokens];
  DEVICE_CHECK(page >= 0 && page < pages.count, "page", page);
  return page;
}

// TokenMap's pointers.
struct Tokens {
  const int32_t *slots, *positions, *page_table, *live;
  int64_t max_pages;
  __device__ const int32_t* Table(int64_t t) const { return page_table + slots[t] * max_pages; }
};
inline Tokens TokensOf(const TokenMap& map) {
  return {Data<int32_t>(map.slots), Data<int32_t>(map.positions), Data<int32_t>(map.page_table),
          Data<int32_t>(map.live), map.page_table.dim(1)};
}

}  // namespace fathom::kernels
