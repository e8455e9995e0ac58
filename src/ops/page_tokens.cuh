// Finds what pages hold of a token, for kernels.
#pragma once

#include <type_traits>

#include "cuda/e4m3.h"
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom::kernels {

// The planes of a layer's pages, with latents of T = float, BF16 or E4M3.
template <class T>
struct Pages {
  static constexpr bool kFp8 = std::is_same_v<T, E4M3>;
  using Rotated = std::conditional_t<kFp8, BF16, T>;

  T* latent;
  Rotated* rope;
  float* scales;                                     // of E4M3 latents
  int64_t latent_stride, rope_stride, scale_stride;  // elements from page to page
  int64_t latent_dim, rope_dim, count;

  __device__ T* Latent(int32_t page, int64_t position) const {
    return latent + page * latent_stride + position % kPageTokens * latent_dim;
  }
  __device__ Rotated* Rope(int32_t page, int64_t position) const {
    return rope + page * rope_stride + position % kPageTokens * rope_dim;
  }
  __device__ float* Scale(int32_t page, int64_t position) const {
    return scales + page * scale_stride + position % kPageTokens;
  }
  // What the elements of a latent are to be multiplied by.
  __device__ float LatentScale(int32_t page, int64_t position) const {
    if constexpr (kFp8) return *Scale(page, position);
    return 1;
  }
};
template <class T>
Pages<T> PagesOf(const KvPages& pages) {
  return {.latent = Data<T>(pages.latent),
          .rope = Data<typename Pages<T>::Rotated>(pages.rope),
          .scales = Data<float>(pages.scales),
          .latent_stride = pages.latent.stride(0),
          .rope_stride = pages.rope.stride(0),
          .scale_stride = Pages<T>::kFp8 ? pages.scales.stride(0) : 0,
          .latent_dim = pages.latent.dim(2),
          .rope_dim = pages.rope.dim(2),
          .count = pages.latent.dim(0)};
}

// Calls function(T()) with the type of the pages' latents.
template <class Function>
void WithLatentType(const KvPages& pages, const Function& function) {
  switch (pages.latent.dtype()) {
    case DType::kF8E4M3: return function(E4M3());
    case DType::kBF16: return function(BF16());
    default: return function(float());
  }
}

// Writes value(i) to channel i of a latent: the whole block calls it. `scratch` is BlockReduce's.
template <class T, class Value>
__device__ void StoreLatent(const Pages<T>& pages, int32_t page, int64_t position,
                            const Value& value, float* scratch) {
  T* to = pages.Latent(page, position);
  if constexpr (Pages<T>::kFp8) {
    float largest = 0;
    for (int64_t i = threadIdx.x; i < pages.latent_dim; i += blockDim.x) {
      largest = LargerMagnitude(largest, value(i));
    }
    largest = BlockReduce(largest, 0.0f, scratch, LargerMagnitude);
    const float scale = RunScale(largest, /*ue8m0=*/true);
    const float reciprocal = __frcp_rn(scale);
    if (threadIdx.x == 0) *pages.Scale(page, position) = scale;
    for (int64_t i = threadIdx.x; i < pages.latent_dim; i += blockDim.x) {
      to[i].bits = static_cast<uint8_t>(QuantizeTwo(value(i), 0, scale, reciprocal));
    }
  } else {
    for (int64_t i = threadIdx.x; i < pages.latent_dim; i += blockDim.x) Store(to + i, value(i));
  }
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
