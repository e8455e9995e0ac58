// Tiles of an FP8 cache as the A operand of products, from registers: E4M3 codes are numbers of
// FP16, into which the hardware converts two by one instruction, and nothing is written back to
// shared memory. A position's scale, a power of two, is left to the scores and to the weights.
#pragma once

#include <cstdint>

#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

// A tile's codes lie in chunks of 128 channels: 64 positions of 128 bytes, swizzled.
inline constexpr int kCodeChunks = kLatent / 128;
inline constexpr int kCodeChunkBytes = 8192;

// Codes 0 and 1 of four, or 2 and 3, as FP16.
template <bool kUpper>
__device__ __forceinline__ uint32_t HalvesOf(uint32_t codes) {
  uint32_t halves;
  asm volatile(
      "{\n.reg .b16 pair<2>;\nmov.b32 {pair0, pair1}, %1;\ncvt.rn.f16x2.e4m3x2 %0, pair%2;\n}\n"
      : "=r"(halves)
      : "r"(codes), "n"(kUpper ? 1 : 0));
  return halves;
}

// Positions as tile rows. One load brings 16 positions of each warp with 32 channels: A of two
// products, whose K runs through each 16 channels in the order 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6,
// 7, 10, 11, 14, 15. The other operand lies in this order (OrderedAsCodes).
__device__ __forceinline__ uint32_t KeyCodesAddress(uint32_t tile) {
  int lane = static_cast<int>(threadIdx.x % 32);
  asm volatile("" : "+r"(lane));  // the compiler must not keep what follows: registers are short
  const int tile_row = static_cast<int>(threadIdx.x % 128 / 32) * 16 + lane % 16;
  return tile + tile_row * 128 + ((lane / 16) ^ (tile_row % 8)) * 16;
}
__device__ __forceinline__ void LoadKeyCodes(uint32_t address, int step, uint32_t (&codes)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
               : "r"((address ^ (step % 4 * 32)) + step / 4 * kCodeChunkBytes)
               : "memory");
}
__device__ __forceinline__ void WidenKeys(const uint32_t (&codes)[4], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    a[k][0] = HalvesOf<false>(codes[2 * k]), a[k][1] = HalvesOf<false>(codes[2 * k + 1]);
    a[k][2] = HalvesOf<true>(codes[2 * k]), a[k][3] = HalvesOf<true>(codes[2 * k + 1]);
  }
}
// 16 channels of the other operand, two in a word.
__device__ __forceinline__ void OrderAsCodes(uint4& first, uint4& second) {
  const uint4 even = {first.x, first.z, second.x, second.z},
              odd = {first.y, first.w, second.y, second.w};
  first = even, second = odd;
}

// Channels as tile rows: the values, transposed, of 256 channels in four products' tile rows. One
// load brings 16 channels of each warp with 32 positions: A of two products. Warp w has the
// channels 64 w and up, 16 of them in each chunk c, 0 to 3; of these tile row r has channel 2 r and
// tile row r + 8 channel 2 r + 1, r = 0..7, since two channels of a position come together.
__device__ __forceinline__ int ChannelOfTileRow(int warp, int chunk, int row, int second) {
  return 64 * warp + 16 * chunk + 2 * row + second;
}
__device__ __forceinline__ uint32_t ValueCodesAddress(uint32_t tile) {
  int lane = static_cast<int>(threadIdx.x % 32), warp = threadIdx.x % 128 / 32;
  asm volatile("" : "+r"(lane), "+r"(warp));
  return tile + warp / 2 * kCodeChunkBytes + lane * 128 + ((warp % 2 * 4) ^ (lane % 8)) * 16;
}
__device__ __forceinline__ void LoadValueCodes(uint32_t address, int chunk, int half,
                                               uint32_t (&codes)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
               : "r"((address ^ (chunk * 16)) + half * 4096)
               : "memory");
}
__device__ __forceinline__ void WidenValues(const uint32_t (&codes)[4], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t by_channel = __byte_perm(codes[i], 0, 0x3120);
    a[i / 2][i % 2 * 2] = HalvesOf<false>(by_channel);
    a[i / 2][i % 2 * 2 + 1] = HalvesOf<true>(by_channel);
  }
}

}  // namespace fathom::mla
