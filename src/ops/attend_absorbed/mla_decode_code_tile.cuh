// A tile of an FP8 cache in the MLA decode kernels: its scores, weights and sums, of columns
// (mla_decode_by_column.cuh), with codes as the A operand (mla_decode_codes.cuh) and all else in
// FP16. A position's scale is left out of the products: it multiplies the position's scores, and
// its weights as they go to the values. So scores stand for log2(weight x scale), and their maxima,
// too; a sum of weights is that of what goes to the values, over the scales.
#pragma once

#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_absorbed/mla_decode_by_column.cuh"
#include "ops/attend_absorbed/mla_decode_codes.cuh"

namespace fathom::mla {

// Weights as FP16 are multiplied by 2 to this: at most 2^14 then (kSlack), and small ones keep more
// bits. It falls out of the quotient.
inline constexpr float kHalfBits = 6;

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
  // The logarithms of weights times scales. `factors`: of a thread's columns.
  template <int kColumns>
  __device__ __forceinline__ void Finish(float (&scores)[kColumns / 2],
                                         const float* factors) const {
    using By = ByColumn<kColumns>;
    float scale[2], shift[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = kOneSquared - __float_as_uint(inverse[i]);
      scale[i] = __uint_as_float(bits);
      shift[i] = static_cast<float>(static_cast<int>(bits >> 23) - 127);
    }
#pragma unroll
    for (int c = 0; c < By::kOwn; ++c) {
      float &low = By::Low(scores, c), &high = By::High(scores, c);
      low = __fmaf_rn(__fmul_rn(low, scale[0]), factors[c], shift[0]);
      high = __fmaf_rn(__fmul_rn(high, scale[1]), factors[c], shift[1]);
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

// Two or eight channels of a query times `factor`: rotated ones in BF16, others in FP16.
__device__ __forceinline__ uint32_t QueryWord(uint32_t word, float factor, bool rotated) {
  const float low = __fmul_rn(__uint_as_float(word << 16), factor),
              high = __fmul_rn(__uint_as_float(word & 0xffff0000), factor);
  const __nv_bfloat162 same = __floats2bfloat162_rn(low, high);
  const __half2 halves = __floats2half2_rn(low, high);
  return rotated ? *reinterpret_cast<const uint32_t*>(&same)
                 : *reinterpret_cast<const uint32_t*>(&halves);
}
__device__ __forceinline__ uint4 QueryWords(const uint4& words, float factor, bool rotated) {
  return make_uint4(QueryWord(words.x, factor, rotated), QueryWord(words.y, factor, rotated),
                    QueryWord(words.z, factor, rotated), QueryWord(words.w, factor, rotated));
}

// Makes FP16 of a query's latent channels, in the order of codes: of one column, whose chunks of 64
// channels are `chunk_bytes` apart at `query`, by kThreads threads of a warp, this one being number
// `part`. The column is multiplied by the power of two that brings its greatest magnitude to 2^14
// and up, so that nothing of weight is lost, its rotated channels, too, which stay BF16. One over
// that power.
template <int kThreads>
__device__ __forceinline__ float PrepareQueryColumn(uint8_t* query, int chunk_bytes, int column,
                                                    int part) {
  constexpr int kLatentPairs = kLatent / 16, kPairs = kLatentPairs + kMlaRope / 16;  // 32 bytes
  constexpr int kOwn = (kPairs + kThreads - 1) / kThreads;
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
  const uint32_t exponent = min(268 - (__float_as_uint(greatest) >> 23), 254u);
  const float factor = __uint_as_float(exponent << 23);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (!here(i)) continue;
    const bool rotated = i * kThreads + part >= kLatentPairs;
    uint4 first = QueryWords(words[i][0], factor, rotated),
          second = QueryWords(words[i][1], factor, rotated);
    if (!rotated) OrderAsCodes(first, second);
    *unit(i, 0) = first, *unit(i, 1) = second;
  }
  return __uint_as_float((254 - exponent) << 23);
}

// How codes go through registers: kLoads of ldmatrix a step, each of them A of two products, and
// kAhead steps whose products are begun. Longer steps wait less often, and take more registers.
template <int kLoads, int kAhead>
struct CodePipeline {
  static constexpr int kStepLoads = kLoads, kStepsAhead = kAhead;
  uint32_t codes[2][kLoads][4], a[kAhead][kLoads][2][4];
};

// scores = K Q^T of a tile, as if all were to be multiplied by the positions' scales: the rotated
// channels' come first, over the scales, and those of codes are added. `tile`, its codes and behind
// them its rotated keys; `await_second`: waits for its other half.
template <int kColumns, class Pipeline, class Await>
__device__ __forceinline__ void ScoreCodes(float (&scores)[kColumns / 2],
                                           const PositionScales& scales, uint32_t tile,
                                           const uint8_t* query, const Await& await_second) {
  constexpr int kQueryChunk = kColumns * 128, kLoads = Pipeline::kStepLoads,
                kAhead = Pipeline::kStepsAhead, kSteps = 16 / kLoads;
  const uint32_t columns = WgmmaOperand(SharedAddress(query));
  const uint32_t rope = WgmmaOperand(tile + kCodeChunks * kCodeChunkBytes);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    WgmmaBf16<kColumns>::template Add<Major::kK, Major::kK>(
        scores, rope + k * 2, columns + (8 * kQueryChunk + k * 32) / 16, k > 0);
  }
  WgmmaCommit();
  const uint32_t address = KeyCodesAddress(tile);
  Pipeline p;
  const auto load = [&](int step) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      LoadKeyCodes(address, step * kLoads + i, p.codes[step % 2][i]);
    }
  };
  const auto widen = [&](int step) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) WidenKeys(p.codes[step % 2][i], p.a[step % kAhead][i]);
  };
  load(0), load(1), widen(0);
  WgmmaWait<0>();
  WgmmaHold(scores);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    scores[i] = __fmul_rn(scores[i], scales.inverse[i % 4 / 2]);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 2 * kLoads; ++i) {
      const int k = step * 2 * kLoads + i;  // of 16 channels
      WgmmaF16<kColumns>::template Add<Major::kK>(scores, p.a[step % kAhead][i / 2][i % 2],
                                                  columns + (k / 4 * kQueryChunk + k % 4 * 32) / 16,
                                                  true);
    }
    WgmmaCommit();
    if ((step + 2) * kLoads == 8) await_second();
    if (step + 2 < kSteps) load(step + 2);
    if (step + 1 == kSteps) continue;
    WgmmaWait<kAhead - 1>();
    widen(step + 1);
  }
  WgmmaWait<0>();
  WgmmaHold(scores);
}

// sums (+)= values x weights of a tile's 256 channels, whose first chunk of codes is `tile`. It
// waits for all.
template <int kColumns, class Pipeline>
__device__ __forceinline__ void AddCodes(float (&sums)[4][kColumns / 2], uint32_t tile,
                                         const uint8_t* weights, bool add) {
  constexpr int kLoads = Pipeline::kStepLoads, kAhead = Pipeline::kStepsAhead, kSteps = 8 / kLoads;
  const uint32_t address = ValueCodesAddress(tile);
  const uint32_t columns = WgmmaOperand(SharedAddress(weights));
  Pipeline p;
  const auto load = [&](int step) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = step * kLoads + i;
      LoadValueCodes(address, at % 4, at / 4, p.codes[step % 2][i]);
    }
  };
  const auto widen = [&](int step) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) WidenValues(p.codes[step % 2][i], p.a[step % kAhead][i]);
  };
  load(0), load(1), widen(0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 2 * kLoads; ++i) {
      const int at = step * kLoads + i / 2, k = at / 4 * 2 + i % 2;  // of 16 positions
      WgmmaF16<kColumns>::template Add<Major::kK>(sums[at % 4], p.a[step % kAhead][i / 2][i % 2],
                                                  columns + k * 2, add || k > 0);
    }
    WgmmaCommit();
    if (step + 2 < kSteps) load(step + 2);
    if (step + 1 == kSteps) continue;
    WgmmaWait<kAhead - 1>();
    widen(step + 1);
  }
  WgmmaWait<0>();
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) WgmmaHold(sums[chunk]);
}

}  // namespace fathom::mla
