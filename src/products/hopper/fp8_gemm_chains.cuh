// How the blocks of a cluster that have a chain each of one tile's runs add these up.
#pragma once

#include "cuda/cluster.h"
#include "cuda/fence.h"
#include "products/hopper/fp8_gemm_sum.cuh"

namespace fathom::fp8_gemm {

// Each warp's part of a unit goes to the block that owns it, which adds the chains in order. All
// threads that multiply; those that load meet them as often.
template <class T>
__device__ __forceinline__ void SumChains(Sums<T> (&sums)[T::kUnits], Shared<T>& shared,
                                          const Work& work, const Place<T>& place, uint32_t rank) {
  constexpr int kVectors = T::kMmaN / 8;  // of four sums, of a thread
  static_assert(sizeof(Sums<T>) == kVectors * sizeof(float4));
  const auto nothing = [&](int unit) {
    return place.UnitToken(unit) + place.warp % 4 * 16 >= work.tokens;
  };
  // In the part's owner, of the block that comes `after` it.
  const auto room = [&](int unit, int after) {
    const int slot = place.PartOf(unit) / T::kBlocks * (T::kBlocks - 1) + after - 1;
    return shared.room.vectors + slot * T::kPartVectors + place.lane;
  };
  ClusterWait();  // all have begun
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
    if (place.Owns(unit) || nothing(unit)) continue;
    const float4* vectors = reinterpret_cast<const float4*>(sums[unit]);
    const int owner = place.PartOf(unit) % T::kBlocks;
    const float4* to = room(unit, (static_cast<int>(rank) - owner + T::kBlocks) % T::kBlocks);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      StoreAtPeer(PeerAddress(to + i * 32, owner), vectors[i]);
    }
  }
  ClusterSync();  // and have what they own
#pragma unroll
  for (int unit = 0; unit < T::kUnits; ++unit) {
    if (!place.Owns(unit) || nothing(unit)) continue;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float total[4] = {kNoChain, kNoChain, kNoChain, kNoChain};
#pragma unroll
      for (int chain = 0; chain < T::kBlocks; ++chain) {
        const float* mine = sums[unit] + 4 * i;
        const float4 part =
            chain == static_cast<int>(rank)
                ? make_float4(mine[0], mine[1], mine[2], mine[3])
                : room(unit, (chain - static_cast<int>(rank) + T::kBlocks) % T::kBlocks)[i * 32];
        total[0] = __fadd_rn(total[0], part.x);
        total[1] = __fadd_rn(total[1], part.y);
        total[2] = __fadd_rn(total[2], part.z);
        total[3] = __fadd_rn(total[3], part.w);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[unit][4 * i + k] = total[k];
    }
  }
}

}  // namespace fathom::fp8_gemm
