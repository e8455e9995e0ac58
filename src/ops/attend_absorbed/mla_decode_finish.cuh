// What a warpgroup of the wide MLA decode kernels does with an item's sums: it writes the result,
// or a part of it, scaled for FP16, which CombineKernel merges with the others.
#pragma once

#include <cuda_fp16.h>

#include "ops/attend_absorbed/mla_decode_kernel.cuh"

namespace fathom::mla {

inline constexpr int kStateColumns = 64;  // values of a pair that share a state
inline constexpr int kStates = kLatent / kStateColumns;

// Of a place in an item: its token and head. `written` false: there is none, or only a later token
// of the item sees this part.
struct Pair {
  __device__ Pair(const Step& step, const Item& item, int place) {
    const int32_t pair = item.head_block * kPairs + place, offset = pair / step.heads;
    head = pair % step.heads;
    token = item.token + offset;
    position = item.position + offset;
    written = place < item.pairs(step) && position >= item.begin();
  }
  int32_t token, head, position;
  bool written;
};

// One pair's sums: of columns `first_column` + 8 j + 2 (lane % 4) + {0, 1}, which four threads
// have, the ones of this thread, 2 j + {0, 1}. All lanes of a warp call what takes them.
template <int kCount>
struct PairSums {
  int pair, first_column;
  float maximum, weights;    // in log2; the sum of weights
  float values[2 * kCount];  // not normalised
};

template <int kCount>
__device__ __forceinline__ void WriteOut(__nv_bfloat16* out, bool written,
                                         const PairSums<kCount>& sums) {
  // Lanes in pairs exchange halves, so that four lanes fill 32 bytes of memory together.
  const int quad = static_cast<int>(threadIdx.x % 4);
  const float factor = __fdiv_rn(1, sums.weights);
#pragma unroll
  for (int j = 0; j < kCount; j += 2) {
    uint32_t words[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(__fmul_rn(sums.values[2 * (j + k) + 0], factor),
                                __fmul_rn(sums.values[2 * (j + k) + 1], factor));
      words[k] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    const bool odd = quad % 2 == 1;
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? words[0] : words[1], 1);
    const uint2 four = odd ? make_uint2(other, words[1]) : make_uint2(words[0], other);
    if (written) *reinterpret_cast<uint2*>(out + 8 * (j + quad % 2) + quad / 2 * 4) = four;
  }
}

template <int kCount>
__device__ __forceinline__ void WritePartial(const Output& output, int64_t at, bool written,
                                             const PairSums<kCount>& sums) {
  const int quad = static_cast<int>(threadIdx.x % 4);
  uint4* partial =
      reinterpret_cast<uint4*>(output.partial + at * kLatent + sums.first_column) + quad;
#pragma unroll
  for (int chunk = 0; chunk < kCount / 8; ++chunk) {
    float greatest = 0;
#pragma unroll
    for (int j = 8 * chunk; j < 8 * chunk + 8; ++j) {
      greatest =
          fmaxf(greatest, fmaxf(fabsf(sums.values[2 * j + 0]), fabsf(sums.values[2 * j + 1])));
    }
    greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, 2));
    // The power of two that brings the greatest magnitude to 2^14 and up; at most 2^54, so that
    // neither the sum overflows nor the weight of a part of zeros is flushed.
    const int exponent = max(-40, static_cast<int>(__float_as_uint(greatest) >> 23) - 127) - 14;
    const float factor = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
    if (!written) continue;
#pragma unroll
    for (int m = 2 * chunk; m < 2 * chunk + 2; ++m) {
      __half2 halves[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        halves[j] = __floats2half2_rn(sums.values[2 * (4 * m + j) + 0] * factor,
                                      sums.values[2 * (4 * m + j) + 1] * factor);
      }
      partial[4 * m] = *reinterpret_cast<const uint4*>(halves);
    }
    if (quad == 0) {
      output.state[at * kStates + sums.first_column / kStateColumns + chunk] =
          make_float2(sums.maximum + static_cast<float>(exponent), sums.weights * factor);
    }
  }
}

// One pair's of an item's sums, of an item that may be a part of its context.
template <int kCount>
__device__ __forceinline__ void WritePair(const Step& step, const Output& output, const Item& item,
                                          const PairSums<kCount>& sums) {
  const Pair pair(step, item, sums.pair);
  const int64_t at = (int64_t{pair.token} * step.max_splits + item.part) * step.heads + pair.head;
  // Of a token with one part: the result. Tokens of an item have equally many parts, or differ by
  // one; a warp may hold both.
  const bool whole = pair.position < item.part_tokens;
  if (__any_sync(kAllLanes, pair.written && whole)) {
    WriteOut(
        output.out + (int64_t{pair.token} * step.heads + pair.head) * kLatent + sums.first_column,
        pair.written && whole, sums);
  }
  if (__any_sync(kAllLanes, pair.written && !whole)) {
    WritePartial(output, at, pair.written && !whole, sums);
  }
}

template <int kGroup, bool kFp8>
__device__ inline void Consumer<kGroup, kFp8>::Finish() {
  const int parity = item_parity_ ^ 1;
  const Item& item = s_.item[parity];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum_[i] = __fadd_rn(sum_[i], __shfl_xor_sync(kAllLanes, sum_[i], 1));
    sum_[i] = __fadd_rn(sum_[i], __shfl_xor_sync(kAllLanes, sum_[i], 2));
    if (lane_ % 4 == 0) s_.sum[parity][kGroup][pair_ + 8 * i] = sum_[i];
  }
  NamedBarrierSync(kItemDone, 256);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int pair = pair_ + 8 * i;
    PairSums<32> sums = {.pair = pair,
                         .first_column = 256 * kGroup,
                         .maximum = max_[i].value,
                         .weights = __fadd_rn(s_.sum[parity][0][pair], s_.sum[parity][1][pair])};
#pragma unroll
    for (int j = 0; j < 64; ++j) sums.values[j] = Out(j / 2 * 4 + 2 * i + j % 2);
    WritePair(step_, output_, item, sums);
  }
}

}  // namespace fathom::mla
