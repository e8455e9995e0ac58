// The end of a tile of the FP8 product: BF16, F32, or silu(gate) * up in E4M3.
#pragma once

#include "cuda/e4m3.h"
#include "cuda/fence.h"
#include "products/hopper/fp8_gemm_tile.cuh"

namespace fathom::fp8_gemm {

template <class T>
__device__ __forceinline__ void StoreBf16(const Sums<T>& sum, uint8_t* staging, const Args& args,
                                          const Work& work, const Place<T>& place, int unit) {
  constexpr int kChannels = T::kMmaN < 64 ? T::kMmaN : 64;  // staged at a time
  const int token = place.UnitToken(unit) + place.warp % 4 * 16;
#pragma unroll
  for (int first = 0; first < T::kMmaN; first += kChannels) {
#pragma unroll
    for (int chunk = 0; chunk < kChannels / 8; chunk += 2) {
      StageBf16(staging, chunk, sum + (first / 8 + chunk) * 4, place.lane);
    }
    __syncwarp();
    const int channel = place.UnitChannel(unit) + first;
    uint8_t* out =
        static_cast<uint8_t*>(args.out) + ((work.token + token) * args.out_stride +
                                           work.part * args.part_out + work.channel + channel) *
                                              2;
    StoreStaged<kChannels / 8>(staging, out, args.out_stride * 2, work.tokens - token,
                               (work.channels - channel) * 2, place.lane);
    __syncwarp();
  }
}

template <class T>
__device__ __forceinline__ void StoreF32(const Sums<T>& sum, const Args& args, const Work& work,
                                         const Place<T>& place, int unit) {
  const int token = place.UnitToken(unit) + place.warp % 4 * 16, channel = place.UnitChannel(unit);
  float* out = static_cast<float*>(args.out) + (work.token + token) * args.out_stride +
               work.part * args.part_out + work.channel + channel;
  fathom::StoreF32<T::kMmaN>(sum, out, args.out_stride, work.tokens - token,
                             work.channels - channel, place.lane);
}

// The greatest magnitudes of a thread's two tokens among the warps that share their run: two of
// each block of kHalves.
template <class T>
__device__ __forceinline__ void ShareLargest(float (&largest)[2], Shared<T>& shared,
                                             const Place<T>& place) {
  const uint32_t turn = place.ended % 2, rank = ClusterRank();
  auto& tokens = shared.run_largest.tokens[turn][place.warp % 4];
  Mbarrier& full = shared.run_largest.full[turn][place.warp % 4];
  if (place.warpgroup_n == 0 && place.lane == 0) full.ArriveExpect(sizeof(tokens));
  if (place.lane % 4 == 0) {
    float* const mine = tokens[2 * rank + place.warpgroup_n] + place.lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // both tokens, to both blocks
      asm volatile(
          "{\n.reg .b32 to, full;\n"
          "mapa.shared::cluster.u32 to, %0, %3;\n"
          "mapa.shared::cluster.u32 full, %1, %3;\n"
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, [full];\n"
          "}\n" ::"r"(SharedAddress(mine + 8 * (i % 2))),
          "r"(full.address()), "r"(__float_as_uint(largest[i % 2])), "r"(i / 2)
          : "memory");
    }
  }
  full.Wait(place.ended / 2 % 2);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    largest[i % 2] = LargerMagnitude(largest[i % 2], tokens[i / 2][place.lane / 4 + 8 * (i % 2)]);
  }
}

// Quantises and stores a warp's 16 tokens of h, from `channel` of the tile on: kNumbers / 4 pairs
// of channels, each 8 after the one before, of each of a thread's two tokens. A run is spread over
// four lanes, and of kHalves over four warps.
template <class T, int kNumbers>
__device__ __forceinline__ void StoreQuantized(float (&h)[kNumbers], int channel, Shared<T>& shared,
                                               const Args& args, const Work& work,
                                               const Place<T>& place) {
  uint8_t* const staging =
      shared.staging[T::kHalves ? 2 * (place.warp % 4) + place.warpgroup_n : place.warp];
  const int first_channel = place.lane % 4 * 2;
  if (work.channels - channel < 2 * kNumbers) {  // what lies beyond is not of the run
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      if (channel + i / 4 * 8 + first_channel >= work.channels) h[i] = 0;
    }
  }
  float largest[2] = {};
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) {
    largest[i / 2 % 2] = LargerMagnitude(largest[i / 2 % 2], h[i]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      largest[half] =
          LargerMagnitude(largest[half], __shfl_xor_sync(kAllLanes, largest[half], lanes));
    }
  }
  if constexpr (T::kHalves) ShareLargest<T>(largest, shared, place);
  const float scales[2] = {RunScale(largest[0], args.ue8m0), RunScale(largest[1], args.ue8m0)};
  const bool first_of_run = (work.channel + channel) % kRun == 0 && place.lane % 4 == 0;
  const auto quantize = [&](int half, const auto& two) {
    const float scale = scales[half], reciprocal = __frcp_rn(scale);
    const int token = place.lane / 4 + 8 * half;
#pragma unroll
    for (int j = 0; j < kNumbers / 4; ++j) {
      const float* both = h + 4 * j + 2 * half;
      *reinterpret_cast<uint16_t*>(staging + token * kStagedBytes + (j / 2 ^ token % 8) * 16 +
                                   j % 2 * 8 + first_channel) =
          static_cast<uint16_t>(two(both[0], both[1], scale, reciprocal));
    }
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = place.Token(0) + 8 * half;
    if (first_of_run && token < work.tokens && work.channels > 0) {
      args.out_scales[work.channel / kRun * args.out_scale_pitch + work.token + token] =
          scales[half];
    }
    // One question for all, rather than a branch for each two.
    if (__all_sync(kAllLanes, scales[half] < __int_as_float(0x7f800000))) {
      quantize(half, [](auto... v) { return QuantizeTwoFinite(v...); });
    } else {
      quantize(half, [](auto... v) { return QuantizeTwo(v...); });
    }
  }
  __syncwarp();
  const int token = place.UnitToken(0) + place.warp % 4 * 16;
  uint8_t* out = static_cast<uint8_t*>(args.out) + (work.token + token) * args.out_stride +
                 work.channel + channel;
  StoreStaged<kNumbers / 8>(staging, out, args.out_stride, work.tokens - token,
                            work.channels - channel, place.lane);
  __syncwarp();
}

// silu(gate) * up, quantised, of kHalves: one warp has gate, one up. Each gives the other half of
// its channels, so that both do half of what follows.
template <class T>
__device__ __forceinline__ void StoreHalves(const Sums<T>& sum, Shared<T>& shared, const Args& args,
                                            const Work& work, Place<T>& place) {
  constexpr int kKept = T::kMmaN / 4, kFours = kKept / 4;
  const int pair = place.warp % 4;
  const bool has_up = place.warpgroup_n == 1;
  float4* const handed = reinterpret_cast<float4*>(shared.staging[2 * pair]) + place.lane;
  float kept[kKept];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float *low = sum + 4 * i, *high = low + kKept;
    handed[(has_up * kFours + i) * 32] = has_up ? make_float4(low[0], low[1], low[2], low[3])
                                                : make_float4(high[0], high[1], high[2], high[3]);
#pragma unroll
    for (int k = 0; k < 4; ++k) kept[4 * i + k] = has_up ? high[k] : low[k];
  }
  NamedBarrierSync(1 + pair, 64);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const float4 four = handed[(!has_up * kFours + i) * 32];
    const float got[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float& own = kept[4 * i + k];
      own = SiluTimes(has_up ? got[k] : own, has_up ? own : got[k]);
    }
  }
  // Both have read before both know the other's greatest magnitude, and write to `staging`.
  StoreQuantized<T>(kept, place.warpgroup_n * (T::kMmaN / 2), shared, args, work, place);
  ++place.ended;
}

template <class T>
__device__ void Store(Sums<T> (&sums)[T::kUnits], Shared<T>& shared, const Args& args,
                      const Work& work, Place<T>& place) {
  uint8_t* staging = shared.staging[place.warp];
  // Experts of few tokens leave most warps nothing to do.
  const auto nothing = [&](int unit) {
    return !place.Owns(unit) || place.UnitToken(unit) + place.warp % 4 * 16 >= work.tokens;
  };
  if constexpr (T::kHalves) {
    if (!nothing(0)) StoreHalves<T>(sums[0], shared, args, work, place);
  } else if constexpr (T::kSilu) {
    if (nothing(0)) return;
#pragma unroll
    for (int i = 0; i < T::kMmaN / 2; ++i) sums[0][i] = SiluTimes(sums[0][i], sums[1][i]);
    StoreQuantized<T>(sums[0], 0, shared, args, work, place);
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
