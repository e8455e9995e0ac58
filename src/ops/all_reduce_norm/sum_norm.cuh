// A small all_reduce_norm's kernel: a block of each rank sends its part of a token to all others as
// packets, sums what they send, and norms it. Its body takes the rank and the block as arguments,
// so that a test can have all ranks in one launch (tests/gpu/one_launch_test.cu).
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/norm_token.cuh"
#include "ops/quantized_copy_cuda.h"
#include "parallel/peer.cuh"

namespace fathom::kernels {

// Eight sums in fp32.
struct Sums {
  Vector sum = {};

  __device__ void Add(uint4 x) {
    const Vector part = Unpack(x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.v[i] += part.v[i];
  }
  __device__ uint4 Rounded() const {
    return Pack(sum);
  }
};

struct SumNormArgs {
  Slices<const BF16> x;
  Slices<float> residual;
  bool begins;  // the residual is taken for zeros
  Scaling scaling;
  const int32_t* live;
  Slices<BF16> out;
  QuantizedOut quantized;
  uint64_t wait_bits;

  static SumNormArgs Of(const AllReduceNormArgs& a) {
    const RmsNormArgs& norm = a.norm;
    return {.x = SlicesOf<const BF16>(norm.x),
            .residual = SlicesOf<float>(norm.residual),
            .begins = a.begins,
            .scaling = {Data<float>(norm.weight), norm.eps, norm.x.dim(1)},
            .live = Data<int32_t>(norm.live),
            .out = SlicesOf<BF16>(norm.out),
            .quantized = QuantizedOutOf(norm.quantized),
            .wait_bits = WaitBits(MeetingOp::kAllReduceNorm, norm.x.dim(0), norm.x.dim(1))};
  }
};

// Of a token of so many channels: two for each vector, of whole warps.
__host__ __device__ inline int64_t PacketsOfToken(int64_t width) {
  constexpr int64_t kWarpChannels = kWarp * kVector;
  return (width + kWarpChannels - 1) / kWarpChannels * 2 * kWarp;
}
// Whether so many tokens go in packets, rather than in rounds.
inline bool GoesInPackets(int64_t tokens, int64_t width, int ranks) {
  const auto bytes = static_cast<size_t>(tokens * PacketsOfToken(width)) * sizeof(uint2);
  return PeerExchange::TakesPackets(bytes, ranks);
}

// Calls `launch` with the type of the least of 2, 4 and 8 that is no less than `ranks`.
template <class Launch>
void ForMostRanks(int ranks, const Launch& launch) {
  static_assert(PeerExchange::kMaxRanks == 8);
  if (ranks <= 2) return launch(std::integral_constant<int, 2>());
  if (ranks <= 4) return launch(std::integral_constant<int, 4>());
  launch(std::integral_constant<int, 8>());
}

// Packets of some steps from all other ranks, asked for at once: one by one each takes a trip to
// the L2, and twelve such trips took four ranks 1.4 us more. `place(step)`: of its first packet.
template <int kTogether, int kMost, class Place>
__device__ __forceinline__ void TakePackets(const PeerView& peers, uint32_t epoch, int64_t width,
                                            int first, const Place& place,
                                            uint2 (&parts)[kTogether][kMost][2]) {
  Await(peers, [&] {
    bool there = true;
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
#pragma unroll
      for (int rank = 0; rank < kMost; ++rank) {
        if (rank == peers.rank || rank >= peers.size || NormChannel(first + u) >= width) continue;
        const auto* from =
            reinterpret_cast<const uint4*>(peers.mine->packets[epoch & 1][rank]) + place(first + u);
        there &= LoadPacket(from, epoch, parts[u][rank][0]);
        there &= LoadPacket(from + kWarp, epoch, parts[u][rank][1]);
      }
    }
    return there;
  });
}

// Token t of `tokens`, a block for each; up to kSteps * 2048 channels, aligned, of up to kMost
// ranks.
template <int kSteps, int kMost>
__device__ __forceinline__ void SumNormToken(const PeerView& peers, const SumNormArgs& a,
                                             unsigned t, unsigned tokens) {
  AllowNextKernel();
  const int64_t width = a.scaling.width;
  Raw<float> weight[kSteps];
  LoadSteps<true>(a.scaling.weight, width, weight);
  WaitForPriorKernels();
  // What is read before the live count is there may be nobody's token.
  const int32_t count = *a.live;
  const uint32_t epoch = peers.counters->packets + 1, number = peers.counters->barrier + epoch;
  Raw<BF16> own[kSteps];
  Raw<float> before[kSteps] = {};
  LoadSteps<true>(a.x[t], width, own);
  if (!a.begins) LoadSteps<true>(static_cast<const float*>(a.residual[t]), width, before);
  if (count == 0) return;  // no epoch: nobody would wait for anybody
  const int parity = epoch & 1;
  // A warp's first packets lie side by side, and so do its second ones: each store fills lines.
  const auto piece = [&](int s) {
    const int64_t i = NormChannel(s) / kVector;
    return t * PacketsOfToken(width) + i / kWarp * 2 * kWarp + i % kWarp;
  };
  const auto bits = [&](int s) { return *reinterpret_cast<const uint4*>(own[s].v); };
  if (t < count) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (NormChannel(s) >= width) continue;
      const uint4 x = bits(s);
      for (int hop = 1; hop < peers.size; ++hop) {
        const int peer = (peers.rank + hop) % peers.size;
        auto* to = reinterpret_cast<uint4*>(peers.exchange[peer]->packets[parity][peers.rank]);
        StorePacket(to + piece(s), {x.x, x.y}, epoch);
        StorePacket(to + piece(s) + kWarp, {x.z, x.w}, epoch);
      }
    }
  }
  if (t == 0 && threadIdx.x == 0) TellHost(peers, a.wait_bits, number);
  CountEpoch(peers, &peers.counters->packets, epoch, tokens);
  if (t >= count) return;
  Vector values[kSteps] = {};
  constexpr int kTogether = std::min(kSteps, 8 / kMost);
#pragma unroll
  for (int first = 0; first < kSteps; first += kTogether) {
    uint2 parts[kTogether][kMost][2];
    TakePackets(peers, epoch, width, first, piece, parts);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int s = first + u;
      if (NormChannel(s) >= width) continue;
      Sums sums;
#pragma unroll
      for (int rank = 0; rank < kMost; ++rank) {
        const auto& [low, high] = parts[u][rank];
        if (rank >= peers.size) continue;
        sums.Add(rank == peers.rank ? bits(s) : uint4{low.x, low.y, high.x, high.y});
      }
      values[s] = Unpack(sums.Rounded());
#pragma unroll
      for (int c = 0; c < kVector; ++c) values[s].v[c] += before[s].v[c];
    }
  }
  NormToken<true>(values, weight, a.scaling,
                  NormedToken<float>{t, a.residual[t], a.out[t], a.quantized});
}

}  // namespace fathom::kernels
