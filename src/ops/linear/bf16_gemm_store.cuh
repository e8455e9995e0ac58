// The end of a tile of the BF16 product of many rows: BF16, F32, or silu(gate) * up in BF16.
#pragma once

#include <cuda_bf16.h>

#include "ops/linear/bf16_gemm_tile.cuh"
#include "ops/silu_mul/silu_mul_cuda.cuh"

namespace fathom::bf16_gemm {

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <int kChannels>
__device__ __forceinline__ void StoreF32(const float* y, float* to, int64_t stride, int rows,
                                         int channels, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half, column = lane % 4 * 2;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < kChannels / 8; ++j) {
      if (column + 8 * j < channels) {
        *reinterpret_cast<float2*>(to + row * stride + column + 8 * j) =
            make_float2(y[4 * j + 2 * half], y[4 * j + 2 * half + 1]);
      }
    }
  }
}

// Stores piece kPiece of this warp's 16 rows: kStaged channels, through its staging memory, so that
// rows can be left out and stores are whole sectors.
template <class T, int kPiece>
__device__ __forceinline__ void StorePiece(const float (&sums)[T::kN / 2], Shared<T>& shared,
                                           const Args& args, const Work& work, int warp, int lane) {
  constexpr int kFirst = kPiece * T::kStaged;
  constexpr int kChunks = T::kStaged / 8, kRowsAtATime = 32 / kChunks;
  const int rows = work.rows - warp * 16, channels = work.channels - kFirst;
  const int64_t at = (work.row + warp * 16) * args.out_stride + work.group * args.out_head_stride +
                     work.channel + kFirst;
  if (!T::kSilu && args.f32) {
    StoreF32<T::kStaged>(sums + kFirst / 2, static_cast<float*>(args.out) + at, args.out_stride,
                         rows, channels, lane);
    return;
  }
  // A lane names a row of one of the four 8 x 8 matrices: rows 0-7 and 8-15 of two chunks.
  uint8_t* staging = shared.staging[warp];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk += 2) {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = sums[kFirst / 2 + chunk * 4 + i];
      if (T::kSilu) y[i] = kernels::SiluMul(y[i], sums[(T::kOut + kFirst) / 2 + chunk * 4 + i]);
    }
    const int row = lane % 16, to = (chunk + lane / 16) ^ row % 8;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     SharedAddress(staging) + row * kChunkBytes + to * 16),
                 "r"(PackBf16(y[0], y[1])), "r"(PackBf16(y[2], y[3])), "r"(PackBf16(y[4], y[5])),
                 "r"(PackBf16(y[6], y[7]))
                 : "memory");
  }
  __syncwarp();
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(args.out) + at;
#pragma unroll
  for (int top = 0; top < 16; top += kRowsAtATime) {
    const int row = top + lane / kChunks, chunk = lane % kChunks;
    const uint4 value =
        *reinterpret_cast<const uint4*>(staging + row * kChunkBytes + (chunk ^ row % 8) * 16);
    if (row < rows && chunk * 8 < channels) {
      *reinterpret_cast<uint4*>(out + row * args.out_stride + chunk * 8) = value;
    }
  }
  __syncwarp();
}

template <class T, int kPiece = 0>
__device__ __forceinline__ void StorePiece(int piece, const float (&sums)[T::kN / 2],
                                           Shared<T>& shared, const Args& args, const Work& work,
                                           int warp, int lane) {
  if constexpr (kPiece < T::kPieces) {
    if (piece == kPiece) return StorePiece<T, kPiece>(sums, shared, args, work, warp, lane);
    StorePiece<T, kPiece + 1>(piece, sums, shared, args, work, warp, lane);
  }
}

}  // namespace fathom::bf16_gemm
