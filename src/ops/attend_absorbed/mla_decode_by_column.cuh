// Products of the MLA decode kernels with positions, or values, as tile rows: pairs of token and
// head are columns. A thread holds columns 8j + 2 (lane % 4) + e at index 4j + e, of tile row
// 16 warp + lane / 4, and of tile row + 8 at index 4j + 2 + e. What it holds by column is indexed
// 2j + e. In shared memory what belongs to columns lies as threads hold it: of lanes 4i, of lanes
// 4i + 1, ...
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/warp.h"

namespace fathom::mla {

template <int kColumns>
struct ByColumn {
  static constexpr int kProduct = kColumns / 2;           // what a thread holds of a product
  static constexpr int kOwn = kColumns / 4;               // columns of which it holds some
  static constexpr int kReduced = std::max(1, kOwn / 8);  // of which it gets what Reduce makes

  template <class T>
  static __device__ T* Own(T* columns) {
    return columns + Lane() % 4 * kOwn;
  }
  // The place of the first of the kReduced.
  static __device__ int PlaceOfLane() { return Lane() % 4 * kOwn + Lane() / 4 * kOwn / 8; }
  // The place of a column.
  static __device__ int PlaceOf(int column) {
    return column % 8 / 2 * kOwn + column / 8 * 2 + column % 2;
  }
  // Which of its columns index `i` of a product is.
  static __device__ constexpr int Of(int i) { return i % kProduct / 4 * 2 + i % 2; }

  static __device__ float& Low(float (&scores)[kProduct], int c) {
    return scores[c / 2 * 4 + c % 2];
  }
  static __device__ float& High(float (&scores)[kProduct], int c) {
    return scores[c / 2 * 4 + 2 + c % 2];
  }

  // Reduces what a warp's lanes hold by column over its tile rows; the results are the first ones
  // of `values`. Lanes halve the columns between them, so that few values travel.
  template <class Op>
  static __device__ void Reduce(float (&values)[kOwn], const Op& op) {
    int columns = kOwn;
#pragma unroll
    for (int distance = 16; distance >= 4; distance /= 2) {
      const bool upper = (Lane() & distance) != 0;
      const int half = columns / 2;
      if (half > 0) {
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float give = upper ? values[i] : values[half + i];
          const float keep = upper ? values[half + i] : values[i];
          values[i] = op(keep, __shfl_xor_sync(kAllLanes, give, distance));
        }
        columns = half;
      } else {
        values[0] = op(values[0], __shfl_xor_sync(kAllLanes, values[0], distance));
      }
    }
  }
  static __device__ void ReduceMax(float (&values)[kOwn]) {
    Reduce(values, [](float a, float b) { return fmaxf(a, b); });
  }
  static __device__ void ReduceSum(float (&values)[kOwn]) {
    Reduce(values, [](float a, float b) { return __fadd_rn(a, b); });
  }

  // Rounds weights and leaves them as [column][64 positions], swizzled, for a product.
  static __device__ void StoreWeights(uint32_t to, const float (&weights)[kProduct]) {
    // Matrix i of four: columns 8 (i / 2) and up, positions 16 warp + 8 (i % 2) and up; transposed.
    const int lane = Lane(), tile_row = lane / 16 * 8 + lane % 8;
    const int chunk = static_cast<int>(threadIdx.x) % 128 / 32 * 2 + lane / 8 % 2;
    const uint32_t address = to + tile_row * 128 + ((chunk ^ (tile_row % 8)) * 16);
#pragma unroll
    for (int j = 0; j < kColumns / 16; ++j) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = weights + 8 * j + 2 * i;
        const __nv_bfloat162 two = __floats2bfloat162_rn(pair[0], pair[1]);
        packed[i] = *reinterpret_cast<const uint32_t*>(&two);
      }
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       address + j * 16 * 128),
                   "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
                   : "memory");
    }
  }

 private:
  static __device__ int Lane() {
    return static_cast<int>(threadIdx.x % 32);
  }
};

}  // namespace fathom::mla
