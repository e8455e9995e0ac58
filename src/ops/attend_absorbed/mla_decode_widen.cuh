// Tiles of an FP8 cache, for the MLA decode kernels: the producer's idle warps stand between the
// copy engine and those that compute, and turn E4M3 codes into BF16 where they lie. A scale is a
// power of two, so that a code times its scale is a number of BF16: nothing is rounded here.
#pragma once

#include <cuda_bf16.h>

#include "cuda/fence.h"
#include "cuda/mbarrier.h"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

inline constexpr int kFirstWidenWarp = 9, kWidenWarps = 3;  // warp 8 is the producer

// What they need of a kernel's shared memory, for two buffers of two halves.
struct WidenShared {
  alignas(128) float scales[2][kKeys];
  Mbarrier raw[2][2];  // codes of [buffer][half] are there; scales come with half 0
};

// Bytes of a half's codes.
inline constexpr int kRawHalfBytes = kKeys * kLatent / 2;
// A half is four chunks of 64 values; its codes lie in the last two, 128 values in each.
inline constexpr int kRawChunk = 2;
inline constexpr int kChunkOfTile = 8192;  // bytes: 64 positions of 128 bytes, swizzled

// Two codes, in the low bytes of the halves of `codes`, as BF16 times `scale`.
__device__ __forceinline__ uint32_t WidenTwo(uint32_t codes, __nv_bfloat162 scale) {
  // Exponent and mantissa where BF16 has them make a number 2^-120 times the code, subnormals
  // included.
  const uint32_t bits = ((codes << 8) & 0x80008000) | ((codes << 4) & 0x07f007f0);
  const __nv_bfloat162 bias = __bfloat162bfloat162(__ushort_as_bfloat16(0x7b80));  // 2^120
  __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&bits);
  value = __hmul2(__hmul2(value, bias), scale);
  return *reinterpret_cast<const uint32_t*>(&value);
}
__device__ __forceinline__ uint2 WidenFour(uint32_t codes, __nv_bfloat162 scale) {
  return make_uint2(WidenTwo(__byte_perm(codes, 0, 0x4140), scale),
                    WidenTwo(__byte_perm(codes, 0, 0x4342), scale));
}

// Widens one half of a tile: `chunks` are its four. A warp takes groups of 8 positions, and writes
// over no codes but theirs.
__device__ inline void WidenHalf(uint8_t* chunks, const float* scales, int first_group) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  // Eight lanes have four vectors in each of two rows, whose swizzles make them lie in different
  // banks, of codes and of values.
  const int vector = lane % 4, row8 = lane / 8 ^ (lane / 4 % 2 == 0 ? 0 : 5);
  for (int group = first_group; group < kKeys / 8; group += kWidenWarps) {
    const int row = group * 8 + row8;
    const __nv_bfloat162 scale = __float2bfloat162_rn(scales[row]);
    uint4 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = *reinterpret_cast<const uint4*>(chunks + (kRawChunk + i / 2) * kChunkOfTile +
                                                 row * 128 + ((4 * (i % 2) + vector) ^ row8) * 16);
    }
    __syncwarp();  // values go where codes are
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint8_t* line = chunks + i * kChunkOfTile + row * 128;
      const uint2 values[4] = {WidenFour(codes[i].x, scale), WidenFour(codes[i].y, scale),
                               WidenFour(codes[i].z, scale), WidenFour(codes[i].w, scale)};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        *reinterpret_cast<uint4*>(line + ((2 * vector + k) ^ row8) * 16) =
            make_uint4(values[2 * k].x, values[2 * k].y, values[2 * k + 1].x, values[2 * k + 1].y);
      }
    }
  }
}

// The work of warps 9 to 11: tiles of items as the producer loads them. `tiles(item)` is how many
// an item has, below 0 after the last. `Shared` is a kernel's, with `widen` a WidenShared.
template <class Shared, class Tiles>
__device__ void WidenTiles(Shared& s, const Tiles& tiles) {
  const bool leads = threadIdx.x % 32 == 0;
  const int warp = static_cast<int>(threadIdx.x / 32) - kFirstWidenWarp;
  uint32_t parities = 0;  // bit b: of buffer b
  for (uint32_t item_parity = 0;; item_parity ^= 1) {
    s.query_full.Wait(item_parity);
    const int32_t count = tiles(s.item);
    if (count < 0) return;
    __syncwarp();
    if (leads) s.query_empty.Arrive();
    for (int32_t tile = 0; tile < count; ++tile) {
      const int buffer = tile % 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s.widen.raw[buffer][half].Wait((parities >> buffer) & 1);
        // 8 groups a half: 3, 3 and 2 a warp, then 2, 3 and 3.
        WidenHalf(s.keys[buffer][4 * half], s.widen.scales[buffer],
                  half == 0 ? warp : kWidenWarps - 1 - warp);
        FenceAsyncShared();
        __syncwarp();
        if (leads) s.full[buffer][half].Arrive();
      }
      parities ^= 1u << buffer;
    }
  }
}

// How many arrivals complete a half that is full, and free a query.
template <bool kFp8>
inline constexpr uint32_t kFullArrivals = kFp8 ? 1 + kWidenWarps : 1;
template <bool kFp8>
inline constexpr uint32_t kQueryArrivals = kFp8 ? 8 + kWidenWarps : 8;

}  // namespace fathom::mla
