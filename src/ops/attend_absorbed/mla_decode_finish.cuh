// What a warpgroup of the wide MLA decode kernel does with an item's sums: it writes the result, or
// a part of it, scaled for FP16, which CombineKernel merges with the others.
#pragma once

#include <cuda_fp16.h>

#include "ops/attend_absorbed/mla_decode_kernel.cuh"

namespace fathom::mla {

template <int kGroup, bool kFp8>
__device__ inline void Consumer<kGroup, kFp8>::Finish() {
  const int parity = item_parity_ ^ 1;
  const Item& item = s_.item[parity];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float magnitude = 0;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      magnitude = fmaxf(magnitude, fmaxf(fabsf(Out(4 * j + 2 * i)), fabsf(Out(4 * j + 2 * i + 1))));
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      sum_[i] += __shfl_xor_sync(kAllLanes, sum_[i], distance);
      magnitude = fmaxf(magnitude, __shfl_xor_sync(kAllLanes, magnitude, distance));
    }
    if (lane_ % 4 == 0) {
      s_.sum[parity][kGroup][row_ + 8 * i] = sum_[i];
      s_.magnitude[parity][kGroup][row_ + 8 * i] = magnitude;
    }
  }
  NamedBarrierSync(kItemDone, 256);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t row = row_ + 8 * i;
    if (row >= item.rows(step_)) continue;
    const int32_t pair = item.head_block * kRows + row;
    const int32_t offset = pair / step_.heads, head = pair % step_.heads;
    const int32_t token = item.token + offset, position = item.position + offset;
    if (position < item.begin()) continue;  // a later token of the row sees this part
    const float sum = s_.sum[parity][0][row] + s_.sum[parity][1][row];
    if (position < item.part_tokens) {
      WriteOut(i, 1 / sum,
               output_.out + (int64_t{token} * step_.heads + head) * kLatent + 256 * kGroup +
                   2 * (lane_ % 4));
    } else {
      const int64_t at = (int64_t{token} * step_.max_splits + item.part) * step_.heads + head;
      // The power of two that brings the row's greatest magnitude to 2^14 and up; at most 2^54,
      // so that neither the sum overflows nor the weight of a part of zeros is flushed.
      const float greatest = fmaxf(s_.magnitude[parity][0][row], s_.magnitude[parity][1][row]);
      const int exponent = max(-40, static_cast<int>(__float_as_uint(greatest) >> 23) - 127) - 14;
      const float factor = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
      WritePartial(
          i, factor,
          reinterpret_cast<uint4*>(output_.partial + at * kLatent + 256 * kGroup) + lane_ % 4);
      if (kGroup == 0 && lane_ % 4 == 0) {
        output_.state[at] = make_float2(max_[i] + static_cast<float>(exponent), sum * factor);
      }
    }
  }
}

template <int kGroup, bool kFp8>
__device__ inline void Consumer<kGroup, kFp8>::WriteOut(int i, float factor, __nv_bfloat16* to) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) =
        __floats2bfloat162_rn(Out(4 * j + 2 * i) * factor, Out(4 * j + 2 * i + 1) * factor);
  }
}

template <int kGroup, bool kFp8>
__device__ inline void Consumer<kGroup, kFp8>::WritePartial(int i, float factor, uint4* to) {
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    __half2 values[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 4 * (4 * m + j) + 2 * i;
      values[j] = __floats2half2_rn(Out(at) * factor, Out(at + 1) * factor);
    }
    to[4 * m] = *reinterpret_cast<const uint4*>(values);
  }
}

}  // namespace fathom::mla
