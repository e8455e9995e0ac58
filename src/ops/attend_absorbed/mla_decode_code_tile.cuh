// A tile of an FP8 cache in the narrow MLA decode kernel: its scores, weights and sums, of columns
// (mla_decode_by_column.cuh). Codes are operands as they are: what they are multiplied by, a
// query's number or a weight, is the sum of two E4M3 numbers, whose 4 bits each are BF16's 8. A
// position's scale is left out of the products: it multiplies the position's scores, and its
// weights as they go to the values. So scores stand for log2(weight x scale), and their maxima,
// too; a sum of weights is that of what goes to the values, over the scales.
#pragma once

#include "cuda/e4m3.h"
#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/wgmma_bf16.h"
#include "cuda/wgmma_fp8.h"
#include "ops/attend_absorbed/mla_decode_by_column.cuh"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

// A tile's codes lie in chunks of 128 channels: 64 positions of 128 bytes, swizzled.
inline constexpr int kCodeChunks = kLatent / 128;
inline constexpr int kCodeChunkBytes = 8192;

// Weights are multiplied by 2 to this. The greatest of a group of positions is then 2^8 (an E4M3
// number is at most 448), and one of 2^-18 of it or less is lost. It falls out of the quotient.
inline constexpr float kCodeBits = 8;

// The scales of a thread's two tile rows of scores: powers of two.
struct PositionScales {
  float inverse[2];

  // `scales` of the tile, of which some token sees `seen` positions: those behind may be anything.
  __device__ __forceinline__ void Load(const float* scales, int32_t seen) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int tile_row = static_cast<int>(threadIdx.x % 128 / 32) * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      inverse[i] = __uint_as_float(kOneSquared - __float_as_uint(scales[tile_row + 8 * i]));
      if (tile_row + 8 * i >= seen) inverse[i] = 1;
    }
  }
  // Of tile row lane / 4 of the warp, or 8 further.
  __device__ __forceinline__ float Scale(int i) const {
    return __uint_as_float(kOneSquared - __float_as_uint(inverse[i]));
  }
  // The logarithms of weights times scales. `factors`: of a thread's columns.
  template <int kColumns>
  __device__ __forceinline__ void Finish(float (&scores)[kColumns / 2],
                                         const float* factors) const {
    using By = ByColumn<kColumns>;
    float shift[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shift[i] = static_cast<float>(127 - static_cast<int>(__float_as_uint(inverse[i]) >> 23));
    }
#pragma unroll
    for (int c = 0; c < By::kOwn; ++c) {
      float &low = By::Low(scores, c), &high = By::High(scores, c);
      low = __fmaf_rn(low, factors[c], shift[0]);
      high = __fmaf_rn(high, factors[c], shift[1]);
    }
  }
  // Turns a column's two scores into what goes to the values; the sum of their weights.
  __device__ __forceinline__ float TakeWeights(float& low, float& high, float base) const {
    low = Exp2(__fsub_rn(low, base));
    high = Exp2(__fsub_rn(high, base));
    return __fmaf_rn(high, inverse[1], __fmul_rn(low, inverse[0]));
  }

 private:
  static constexpr uint32_t kOneSquared = 0x7f000000;  // less a power of two: one over it
};

// Two numbers as two E4M3 codes each: the nearest, and kFactor times what it leaves, in which
// numbers above 2^-10 / kFactor are not lost.
template <int kFactor>
__device__ __forceinline__ void SplitTwo(float low, float high, uint32_t& first, uint32_t& second) {
  first = TwoCodes(low, high);
  uint32_t halves;  // E4M3 is part of FP16
  asm volatile("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(first)));
  const float2 nearest = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  second = TwoCodes(__fmul_rn(__fsub_rn(low, nearest.x), kFactor),
                    __fmul_rn(__fsub_rn(high, nearest.y), kFactor));
}

// Splits a query's latent channels in two (SplitTwo): of one column, whose chunks of 64 channels
// are `chunk_bytes` apart at `query`, by kThreads threads of a warp, this one being number `part`.
// The first numbers of 128 channels then lie where the even chunk's column was, the second ones in
// the odd one's: chunks of 128 channels with twice the columns. The column is multiplied by the
// power of two that brings its greatest magnitude to 2^7 and up, so that nothing of weight is lost,
// its rotated channels, too, which stay BF16. One over that power (of 2^127: 0, as all channels are
// next to 0 then). A column with an infinity becomes NaN.
template <int kThreads>
__device__ __forceinline__ float PrepareQueryColumn(uint8_t* query, int chunk_bytes, int column,
                                                    int part) {
  constexpr int kLatentPairs = kLatent / 16, kPairs = kLatentPairs + kMlaRope / 16;  // 32 bytes
  constexpr int kOwn = (kPairs + kThreads - 1) / kThreads;
  static_assert(kLatentPairs % kThreads == 0);
  const auto unit = [&](int i, int half) {
    const int pair = i * kThreads + part;
    return reinterpret_cast<uint4*>(query + pair / 4 * chunk_bytes + column * 128 +
                                    ((2 * (pair % 4) + half) ^ (column % 8)) * 16);
  };
  const auto here = [&](int i) { return i * kThreads + part < kPairs; };
  uint4 words[kOwn][2];
#pragma unroll
  for (int i = 0; i < 2 * kOwn; ++i) {
    words[i / 2][i % 2] = here(i / 2) ? *unit(i / 2, i % 2) : make_uint4(0, 0, 0, 0);
  }
  __nv_bfloat162 most = __float2bfloat162_rn(0);
#pragma unroll
  for (int i = 0; i < 2 * kOwn; ++i) {
    const auto* four = reinterpret_cast<const __nv_bfloat162*>(&words[i / 2][i % 2]);
#pragma unroll
    for (int j = 0; j < 4; ++j) most = __hmax2(most, __habs2(four[j]));
  }
  float greatest = fmaxf(__low2float(most), __high2float(most));
#pragma unroll
  for (int distance = 1; distance < kThreads; distance *= 2) {
    greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, distance));
  }
  const uint32_t exponent = min(261 - (__float_as_uint(greatest) >> 23), 254u);
  const float factor = __uint_as_float(isinf(greatest) ? ~0u : exponent << 23);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (!here(i)) continue;
    auto* two = reinterpret_cast<__nv_bfloat162*>(words[i]);
    if (i * kThreads >= kLatentPairs) {
#pragma unroll
      for (int j = 0; j < 8; ++j) two[j] = __hmul2(two[j], __float2bfloat162_rn(factor));
      *unit(i, 0) = words[i][0], *unit(i, 1) = words[i][1];
      continue;
    }
    uint32_t codes[2][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t first[2], second[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 numbers = __bfloat1622float2(two[2 * j + k]);
        SplitTwo<16>(__fmul_rn(numbers.x, factor), __fmul_rn(numbers.y, factor), first[k],
                     second[k]);
      }
      codes[0][j] = first[0] | first[1] << 16, codes[1][j] = second[0] | second[1] << 16;
    }
    const int pair = i * kThreads + part;
    uint8_t* to = query + pair / 8 * 2 * chunk_bytes + column * 128 + (pair % 8 ^ column % 8) * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(codes[0][0], codes[0][1], codes[0][2], codes[0][3]);
    *reinterpret_cast<uint4*>(to + chunk_bytes) =
        make_uint4(codes[1][0], codes[1][1], codes[1][2], codes[1][3]);
  }
  return __uint_as_float((254 - exponent) << 23);
}

// scores = scale x (codes' products with both numbers of a query, 256 channels a sum, as the tensor
// core keeps 14 bits) + rotated channels' products, of a tile.
// `tile`, its codes and behind them its rotated keys; `await_second`: waits for its other half.
template <int kColumns, class Await>
__device__ __forceinline__ void ScoreCodes(float (&scores)[kColumns / 2],
                                           const PositionScales& scales, uint32_t tile,
                                           const uint8_t* query, const Await& await_second) {
  constexpr int kQueryChunk = 2 * kColumns * 128;
  const uint32_t codes = WgmmaOperand(tile), columns = WgmmaOperand(SharedAddress(query));
  float sums[2][kColumns];  // columns of the first numbers, and of the second ones
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    WgmmaBf16<kColumns>::template Add<Major::kK, Major::kK>(
        scores, codes + (kCodeChunks * kCodeChunkBytes + k * 32) / 16,
        columns + (kCodeChunks * kQueryChunk + k * 32) / 16, k > 0);
  }
#pragma unroll
  for (int chunk = 0; chunk < kCodeChunks; ++chunk) {
    if (chunk == 2) {
      WgmmaCommit();
      await_second();
      WgmmaFence();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaE4M3(sums[chunk / 2], codes + (chunk * kCodeChunkBytes + k * 32) / 16,
                columns + (chunk * kQueryChunk + k * 32) / 16, chunk % 2 > 0 || k > 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaHold(scores), WgmmaHold(sums[0]), WgmmaHold(sums[1]);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const float first = __fadd_rn(sums[0][i], sums[1][i]),
                second = __fadd_rn(sums[0][kColumns / 2 + i], sums[1][kColumns / 2 + i]);
    scores[i] = __fmaf_rn(__fmaf_rn(second, 1.0f / 16, first), scales.Scale(i % 4 / 2), scores[i]);
  }
}

// Values, transposed, come from registers, as wgmma takes E4M3 from shared memory only with K
// innermost: 256 channels as four products' tile rows. One load brings 16 channels of each warp
// with 32 positions: A of a product. Warp w has the channels 64 w and up, 16 of them in each chunk
// c, 0 to 3; of these tile row r has channel 2 r and tile row r + 8 channel 2 r + 1, r = 0..7,
// since two channels of a position come together. K runs through each 16 positions in the order 0,
// 8, 1, 9, ..., 7, 15.
__device__ __forceinline__ int ChannelOfTileRow(int warp, int chunk, int row, int second) {
  return 64 * warp + 16 * chunk + 2 * row + second;
}
__device__ __forceinline__ uint32_t ValueCodesAddress(uint32_t tile) {
  int lane = static_cast<int>(threadIdx.x % 32), warp = threadIdx.x % 128 / 32;
  asm volatile("" : "+r"(lane), "+r"(warp));  // the compiler must not keep what follows
  return tile + warp / 2 * kCodeChunkBytes + lane * 128 + ((warp % 2 * 4) ^ (lane % 8)) * 16;
}
__device__ __forceinline__ void LoadValueCodes(uint32_t address, int chunk, int half,
                                               uint32_t (&codes)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
               : "r"((address ^ (chunk * 16)) + half * 4096)
               : "memory");
}
// What was loaded becomes A.
__device__ __forceinline__ void OrderValues(uint32_t (&codes)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t low = codes[i], high = codes[i + 1];
    codes[i] = __byte_perm(low, high, 0x6240);
    codes[i + 1] = __byte_perm(low, high, 0x7351);
  }
}

// Leaves the weights of tile 0 or 1 of a group as [first, second numbers][column][128 positions of
// the group, as OrderValues has them], swizzled, for products.
template <int kColumns>
__device__ __forceinline__ void StoreWeightCodes(uint32_t to, int tile,
                                                 const float (&weights)[kColumns / 2]) {
  // Matrix i of four: of second numbers from 2 on; columns 8 (i % 2) and up, positions 16 warp and
  // up, two of them, 8 apart, an element; transposed.
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int column = lane / 8 % 2 * 8 + lane % 8;
  const int chunk = tile * 4 + static_cast<int>(threadIdx.x % 128 / 32);
  const uint32_t address =
      to + lane / 16 * kColumns * 128 + column * 128 + (chunk ^ column % 8) * 16;
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* two = weights + 8 * j + 4 * i;
      uint32_t first[2], second[2];
      SplitTwo<1>(two[0], two[2], first[0], second[0]);
      SplitTwo<1>(two[1], two[3], first[1], second[1]);
      packed[i] = first[0] | first[1] << 16, packed[2 + i] = second[0] | second[1] << 16;
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     address + j * 16 * 128),
                 "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
                 : "memory");
  }
}

// sums (+)= values x weights of 256 channels of tile 0 or 1 of a group, whose first chunk of codes
// is `codes`. It waits for all. The tensor core keeps 14 bits: a chain ends with the group.
template <int kColumns>
__device__ __forceinline__ void AddCodes(float (&sums)[4][kColumns / 2], uint32_t codes,
                                         uint32_t weights, int tile) {
  const uint32_t address = ValueCodesAddress(codes);
  const uint32_t columns = WgmmaOperand(weights) + tile * 4;
  constexpr int kLoads = kColumns == 16 ? 8 : 4;  // at a time: registers are short
  uint32_t a[kLoads / 4][4][4];                   // [32 positions][16 channels of each warp]
#pragma unroll
  for (int begin = 0; begin < 8; begin += kLoads) {
    if (begin > 0) WgmmaWait<0>();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      LoadValueCodes(address, i % 4, (begin + i) / 4, a[i / 4][i % 4]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) OrderValues(a[i / 4][i % 4]);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 2 * kLoads; ++i) {
      const int half = begin / 4 + i / 8, second = i / 4 % 2, chunk = i % 4;
      WgmmaE4M3(sums[chunk], a[i / 8][chunk], columns + half * 2 + second * (kColumns * 128 / 16),
                tile > 0 || half > 0 || second > 0);
    }
    WgmmaCommit();
  }
  WgmmaWait<0>();
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) WgmmaHold(sums[chunk]);
}

}  // namespace fathom::mla
