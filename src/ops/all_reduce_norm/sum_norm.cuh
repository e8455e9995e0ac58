// A small all_reduce_norm's kernel: a block of each rank sends its part of a token to all others as
// packets, sums what they send, and norms it. Its body takes the rank and the block as arguments,
// so that a test can have all ranks in one launch (tests/gpu/one_launch_test.cu).
#pragma once

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

// Token t of `tokens`, a block for each; up to kSteps * 2048 channels, aligned.
template <int kSteps>
__device__ __forceinline__ void SumNormToken(const PeerView& peers, const SumNormArgs& a,
                                             unsigned t, unsigned tokens) {
  AllowNextKernel();
  const int64_t width = a.scaling.width, per_token = width / kVector;
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
  const auto piece = [&](int s) { return 2 * (t * per_token + NormChannel(s) / kVector); };
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
        StorePacket(to + piece(s) + 1, {x.z, x.w}, epoch);
      }
    }
  }
  if (t == 0 && threadIdx.x == 0) TellHost(peers, a.wait_bits, number);
  CountEpoch(peers, &peers.counters->packets, epoch, tokens);
  if (t >= count) return;
  Vector values[kSteps] = {};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    if (NormChannel(s) >= width) continue;
    Sums sums;
    for (int rank = 0; rank < peers.size; ++rank) {
      uint4 part = bits(s);
      if (rank != peers.rank) {
        const auto* from =
            reinterpret_cast<const uint4*>(peers.mine->packets[parity][rank]) + piece(s);
        uint2 first, second;
        Await(peers, [&] {
          const bool one = LoadPacket(from, epoch, first);
          return LoadPacket(from + 1, epoch, second) && one;
        });
        part = {first.x, first.y, second.x, second.y};
      }
      sums.Add(part);
    }
    values[s] = Unpack(sums.Rounded());
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[s].v[c] += before[s].v[c];
  }
  NormToken<true>(values, weight, a.scaling,
                  NormedToken<float>{t, a.residual[t], a.out[t], a.quantized});
}

}  // namespace fathom::kernels
