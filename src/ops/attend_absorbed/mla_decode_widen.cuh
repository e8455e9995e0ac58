// Tiles of an FP8 cache, for the wide and the columns MLA decode kernel: warps that do nothing else
// turn E4M3 codes into BF16 where they lie. A scale is a power of two, so that a code times its
// scale is a number of BF16: nothing is rounded.
#pragma once

#include <cuda_bf16.h>

#include "cuda/fence.h"
#include "cuda/mbarrier.h"
#include "cuda/warp.h"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

// What that needs of a kernel's shared memory, for two buffers of two halves.
struct WidenShared {
  alignas(128) float scales[2][kKeys];
  Mbarrier raw[2][2];  // codes of [buffer][half] are there; scales come with the half loaded first
};

// Bytes of a half's codes.
inline constexpr int kRawHalfBytes = kKeys * kLatent / 2;
// A half is four chunks of 64 values; its codes lie in the last two, 128 values in each.
inline constexpr int kRawChunk = 2;
inline constexpr int kChunkOfTile = 8192;  // bytes: 64 positions of 128 bytes, swizzled

// Two numbers of BF16 times two.
__device__ __forceinline__ uint32_t Multiply(uint32_t x, __nv_bfloat162 factor) {
  const __nv_bfloat162 y = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x), factor);
  return *reinterpret_cast<const uint32_t*>(&y);
}
// Four codes as BF16 times `factor` / 2^120.
__device__ __forceinline__ uint2 WidenFour(uint32_t codes, __nv_bfloat162 factor) {
  // BF16's sign, exponent and mantissa at their places make a number 2^-120 times the code,
  // subnormals included. Its two bytes, of all four codes at once:
  const uint32_t high = (codes & 0x80808080) | ((codes >> 4) & 0x07070707);
  const uint32_t low = (codes << 4) & 0xf0f0f0f0;
  return make_uint2(Multiply(__byte_perm(low, high, 0x5140), factor),
                    Multiply(__byte_perm(low, high, 0x7362), factor));
}

// How codes of a position become BF16 times its scale. All lanes of a warp make theirs together.
class PositionFactor {
 public:
  // 2^120 times a scale above 2^7 is none of BF16's numbers; no latent after a norm has one.
  __device__ __forceinline__ explicit PositionFactor(float scale)
      : scale_(scale),
        large_(__any_sync(kAllLanes, scale > 0x1p7f)),
        factor_(__float2bfloat162_rn(large_ ? 0x1p120f : scale * 0x1p120f)) {}

  // Sixteen codes, to two places of eight numbers each.
  __device__ __forceinline__ void Widen(const uint4& codes, uint4* first, uint4* second) const {
    uint2 values[4] = {WidenFour(codes.x, factor_), WidenFour(codes.y, factor_),
                       WidenFour(codes.z, factor_), WidenFour(codes.w, factor_)};
    if (large_) {
      for (uint2& value : values) {
        value.x = Multiply(value.x, __float2bfloat162_rn(scale_));
        value.y = Multiply(value.y, __float2bfloat162_rn(scale_));
      }
    }
    *first = make_uint4(values[0].x, values[0].y, values[1].x, values[1].y);
    *second = make_uint4(values[2].x, values[2].y, values[3].x, values[3].y);
  }

 private:
  float scale_;
  bool large_;
  __nv_bfloat162 factor_;
};

// Widens one half of a tile: `chunks` are its four. Of kWarps warps each takes every kWarps-th unit
// of kUnitPositions positions, 8 or 4, from `unit` on, and writes over no codes but theirs.
template <int kUnitPositions, int kWarps>
__device__ __forceinline__ void WidenHalf(uint8_t* chunks, const float* scales, int unit,
                                          int lane) {
  constexpr int kVectors = kUnitPositions / 2;  // of a lane
  // Eight lanes have four vectors in each of two tile rows, whose swizzles make them lie in
  // different banks, of codes and of values.
  const int vector = lane % 4, second = kUnitPositions == 8 ? 0 : lane / 16;
  for (; unit < kKeys / kUnitPositions; unit += kWarps) {
    const int pair = kUnitPositions == 8 ? lane / 8 : unit % 2 * 2 + lane / 8 % 2;
    const int of_eight = pair ^ (lane / 4 % 2 == 0 ? 0 : 5);
    const int tile_row = unit * kUnitPositions / 8 * 8 + of_eight;
    // Which quarter of the half's codes, and so which chunk of values, a lane's i-th vector is in.
    const auto quarter = [&](int i) { return kUnitPositions == 8 ? i : 2 * i + second; };
    const PositionFactor factor(scales[tile_row]);
    uint4 codes[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int q = quarter(i);
      codes[i] = *reinterpret_cast<const uint4*>(chunks + (kRawChunk + q / 2) * kChunkOfTile +
                                                 tile_row * 128 +
                                                 ((4 * (q % 2) + vector) ^ of_eight) * 16);
    }
    __syncwarp();  // values go where codes are
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint4* line = reinterpret_cast<uint4*>(chunks + quarter(i) * kChunkOfTile + tile_row * 128);
      factor.Widen(codes[i], &line[(2 * vector) ^ of_eight], &line[(2 * vector + 1) ^ of_eight]);
    }
  }
}

// Warps of the wide kernel that do nothing else; warp 8 is the producer. More of them would leave
// those that compute too few registers.
inline constexpr int kFirstWidenWarp = 9, kWidenWarps = 7;

// Their work: the tiles of items, as the producer loads them. `Shared` is that kernel's.
template <class Shared>
__device__ void WidenItems(Shared& s) {
  const int warp = static_cast<int>(threadIdx.x / 32) - kFirstWidenWarp;
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t parities = 0;  // bit b: of buffer b
  for (uint32_t item_parity = 0;; item_parity ^= 1) {
    s.query_full.Wait(item_parity);
    const int32_t tiles = s.item[item_parity].tokens == 0 ? 0 : s.item[item_parity].tiles();
    __syncwarp();
    if (tiles == 0) return;
    if (lane == 0) s.query_empty.Arrive();
    const auto widen = [&](int buffer, int half) {
      s.widen.raw[buffer][half].Wait((parities >> buffer) & 1);
      // 16 units a half: some warps have three of one half, others of the other.
      WidenHalf<4, kWidenWarps>(s.keys[buffer][4 * half], s.widen.scales[buffer],
                                half == 0 ? warp : kWidenWarps - 1 - warp, lane);
      FenceAsyncShared();
      __syncwarp();
      if (lane == 0) s.full[buffer][half].Arrive();
    };
    for (int32_t tile = 0; tile < tiles; tile += 2) {
      const bool odd = tile + 1 < tiles;
      widen(0, 0), widen(0, 1);
      if (odd) widen(1, 1), widen(1, 0);
      parities ^= odd ? 3 : 1;
    }
  }
}

}  // namespace fathom::mla
