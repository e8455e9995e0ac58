// The end of a tile of the BF16 product of many rows: BF16, F32, or silu(gate) * up in BF16.
#pragma once

#include <type_traits>

#include "ops/linear/bf16_gemm_tile.cuh"
#include "ops/silu_mul/silu_mul_cuda.cuh"

namespace fathom::bf16_gemm {

template <class T>
using Kept = std::conditional_t<T::kPacked, uint32_t, float>[T::kKept];

// The sums of a tile as they are kept: SiLU is formed now if they are packed.
template <class T>
__device__ __forceinline__ void Keep(Kept<T>& kept, const float (&sums)[T::kMmaN / 2]) {
#pragma unroll
  for (int i = 0; i < T::kKept; ++i) {
    if constexpr (!T::kPacked) {
      kept[i] = sums[i];
    } else if constexpr (T::kSilu) {
      kept[i] = PackBf16(kernels::SiluMul(sums[2 * i], sums[2 * i + T::kMmaN / 4]),
                         kernels::SiluMul(sums[2 * i + 1], sums[2 * i + 1 + T::kMmaN / 4]));
    } else {
      kept[i] = PackBf16(sums[2 * i], sums[2 * i + 1]);
    }
  }
}

// Stores piece kPiece of this warp's 16 rows: kStaged channels, through its staging memory, so that
// rows can be left out and stores are whole sectors.
template <class T, int kPiece>
__device__ __forceinline__ void StorePiece(const Kept<T>& kept, Shared<T>& shared, const Args& args,
                                           const Work& work, int warp, int lane) {
  constexpr int kFirst = kPiece * T::kStaged;
  constexpr int kChunks = T::kStaged / 8;
  const int row = warp % (4 * T::kDown) * 16, rows = work.rows - row;
  const int first = warp / (4 * T::kDown) * T::kMmaOut + kFirst;
  const int channels = work.channels - first;
  const int64_t at =
      (work.row + row) * args.out_stride + work.group * args.out_head_stride + work.channel + first;
  uint8_t* staging = shared.staging[warp];
  if constexpr (T::kPacked) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      StagePacked(staging, chunk, kept + kFirst / 4 + chunk * 2, lane);
    }
  } else {
    if (!T::kSilu && args.f32) {
      StoreF32<T::kStaged>(kept + kFirst / 2, static_cast<float*>(args.out) + at, args.out_stride,
                           rows, channels, lane);
      return;
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        y[i] = kept[kFirst / 2 + chunk * 4 + i];
        if (T::kSilu) y[i] = kernels::SiluMul(y[i], kept[(T::kMmaOut + kFirst) / 2 + chunk * 4 + i]);
      }
      StageBf16(staging, chunk, y, lane);
    }
  }
  __syncwarp();
  StoreStaged<kChunks>(staging, static_cast<uint8_t*>(args.out) + at * 2, args.out_stride * 2, rows,
                       channels * 2, lane);
  __syncwarp();
}

template <class T, int kPiece = 0>
__device__ __forceinline__ void StorePiece(int piece, const Kept<T>& kept, Shared<T>& shared,
                                           const Args& args, const Work& work, int warp,
                                           int lane) {
  if constexpr (kPiece < T::kPieces) {
    if (piece == kPiece) return StorePiece<T, kPiece>(kept, shared, args, work, warp, lane);
    StorePiece<T, kPiece + 1>(piece, kept, shared, args, work, warp, lane);
  }
}

}  // namespace fathom::bf16_gemm
