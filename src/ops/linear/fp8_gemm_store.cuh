// The end of a tile of the FP8 product: BF16, F32, or silu(gate) * up in E4M3.
#pragma once

#include "cuda/e4m3.h"
#include "ops/linear/fp8_gemm_tile.cuh"

namespace fathom::fp8_gemm {

template <class T>
__device__ __forceinline__ void StoreBf16(const Sums<T>& sum, uint8_t* staging, const Args& args,
                                          const Work& work, const Place<T>& place, int unit) {
  constexpr int kChannels = T::kMmaN < 64 ? T::kMmaN : 64;  // staged at a time
  const int row = place.UnitRow(unit) + place.warp % 4 * 16;
#pragma unroll
  for (int first = 0; first < T::kMmaN; first += kChannels) {
#pragma unroll
    for (int chunk = 0; chunk < kChannels / 8; chunk += 2) {
      StageBf16(staging, chunk, sum + (first / 8 + chunk) * 4, place.lane);
    }
    __syncwarp();
    const int channel = place.UnitChannel(unit) + first;
    uint8_t* out =
        static_cast<uint8_t*>(args.out) +
        ((work.row + row) * args.out_stride + work.part * args.part_out + work.channel + channel) *
            2;
    StoreStaged<kChannels / 8>(staging, out, args.out_stride * 2, work.rows - row,
                               (work.channels - channel) * 2, place.lane);
    __syncwarp();
  }
}

template <class T>
__device__ __forceinline__ void StoreF32(const Sums<T>& sum, const Args& args, const Work& work,
                                         const Place<T>& place, int unit) {
  const int row = place.UnitRow(unit) + place.warp % 4 * 16, channel = place.UnitChannel(unit);
  float* out = static_cast<float*>(args.out) + (work.row + row) * args.out_stride +
               work.part * args.part_out + work.channel + channel;
  fathom::StoreF32<T::kMmaN>(sum, out, args.out_stride, work.rows - row, work.channels - channel,
                             place.lane);
}

// silu(gate) * up of 64 rows and 128 channels, quantised: a row's run is spread over four lanes.
template <class T>
__device__ __forceinline__ void StoreSilu(Sums<T>& gate, const Sums<T>& up, uint8_t* staging,
                                          const Args& args, const Work& work,
                                          const Place<T>& place) {
  const int first_channel = place.lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kRun / 8; ++j) {
#pragma unroll
      for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) {
        gate[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
        if (8 * j + first_channel < work.channels) largest = LargerMagnitude(largest, gate[i]);
      }
    }
    largest = LargerMagnitude(largest, __shfl_xor_sync(0xffffffff, largest, 1));
    largest = LargerMagnitude(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    const float scale = RunScale(largest, args.ue8m0), reciprocal = __frcp_rn(scale);
    const int row = place.Row(0) + 8 * half;
    if (place.lane % 4 == 0 && row < work.rows && work.channels > 0) {
      args.out_scales[work.channel / kRun * args.out_scale_pitch + work.row + row] = scale;
    }
    const int staged_row = place.lane / 4 + 8 * half;
#pragma unroll
    for (int j = 0; j < kRun / 8; ++j) {
      const float* h = gate + 4 * j + 2 * half;
      *reinterpret_cast<uint16_t*>(staging + staged_row * kRun + (j / 2 ^ staged_row % 8) * 16 +
                                   j % 2 * 8 + first_channel) =
          static_cast<uint16_t>(QuantizeTwo(h[0], h[1], scale, reciprocal));
    }
  }
  __syncwarp();
  const int row = place.UnitRow(0) + place.warp % 4 * 16;
  uint8_t* out =
      static_cast<uint8_t*>(args.out) + (work.row + row) * args.out_stride + work.channel;
  StoreStaged<kRun / 16>(staging, out, args.out_stride, work.rows - row, work.channels, place.lane);
  __syncwarp();
}

template <class T>
__device__ void Store(Sums<T> (&sums)[T::kUnits], Shared<T>& shared, const Args& args,
                      const Work& work, const Place<T>& place) {
  uint8_t* staging = shared.staging[place.warp];
  // Experts of few rows leave most warps nothing to do.
  const auto nothing = [&](int unit) {
    return place.UnitRow(unit) + place.warp % 4 * 16 >= work.rows;
  };
  if constexpr (T::kSilu) {
    if (!nothing(0)) StoreSilu<T>(sums[0], sums[1], staging, args, work, place);
  } else {
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit) {
      if (nothing(unit)) continue;
      if (args.f32) {
        StoreF32<T>(sums[unit], args, work, place, unit);
      } else {
        StoreBf16<T>(sums[unit], staging, args, work, place, unit);
      }
    }
  }
}

}  // namespace fathom::fp8_gemm
