// The sum of all ranks' parts on CUDA, and the norm that follows.
//   formula:       s = the sum over ranks of x, in their order, rounded to BF16;
//                  residual += s, then rms_norm of it
//   data mapping:  small ones (GoesInPackets) between linked GPUs one launch: a block sends a
//                  token to all peers as packets with an epoch, sums what comes, and norms it
//                  (sum_norm.cuh).
//                  Else in rounds (sum_rounds.h): parts go to a token's owner, a block of whom sums
//                  and norms it and writes it to all ranks, who take it and make its codes
//   bytes, FLOPs:  small: 4 (ranks - 1) bytes out and in a number; large: 4 (ranks - 1) / ranks;
//                  ranks FLOPs a number; the norm's, of a large message those of owned tokens; and
//                  4 bytes a number to take the others
//   accumulator:   fp32; the same bits in both forms
//   expected time: 14 to 229 KB on two H200s: 2.1 to 3.6 us more than the norm (docs/ranks.md)
//   builds on:     one-shot exchange in packets of data and flag, as NCCL's LL protocol; for more,
//                  reduce-scatter and all-gather (Rabenseifner 2004) around the norm, as Megatron's
//                  sequence parallelism has it (Korthikanti et al. 2022)
#include "ops/all_reduce_norm/sum_norm.cuh"
#include "ops/all_reduce_norm/sum_rounds.h"
#include "ops/cuda_ops.h"
#include "parallel/gpu_ranks.h"
#include "parallel/peer_rounds.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 128;

template <int kSteps, int kMost>
__global__ void __launch_bounds__(kNormThreads) SumNorm(PeerView peers, SumNormArgs args) {
  SumNormToken<kSteps, kMost>(peers, args, blockIdx.x, gridDim.x);
}

// A round as this rank's kernels see it.
struct RoundView {
  SumRound round;
  Share mine;         // of the round's tokens
  int64_t per_token;  // pieces of sixteen bytes

  __device__ int64_t live(const SumNormArgs& a) const {
    return min(*a.live - round.first, round.count);
  }
  // Where rank `from`'s part of a token lies in the window of one who sums it.
  __device__ int64_t PartOf(int from, int64_t token_of_owner) const {
    return (from * round.each + token_of_owner) * per_token;
  }
};

// A block takes a token's part to its owner's window, or to all.
__global__ void __launch_bounds__(kThreads)
    SendParts(PeerView peers, RoundView view, SumNormArgs a) {
  AfterPriorKernels();
  const int64_t t = blockIdx.x;
  if (t >= view.live(a)) return;
  const auto* x = reinterpret_cast<const uint4*>(a.x[view.round.first + t]);
  const int64_t owner = t / view.round.each, at = view.PartOf(peers.rank, t % view.round.each);
  for (int peer = 0; peer < peers.size; ++peer) {
    if (peer == peers.rank || (view.round.owned && peer != owner)) continue;
    auto* to = WindowAhead<uint4>(peers, peer) + at;
    for (int64_t i = threadIdx.x; i < view.per_token; i += kThreads) to[i] = x[i];
  }
}

// A block sums and norms a token of this rank's, and hands it to all others where it owns it.
template <int kSteps>
__global__ void __launch_bounds__(kNormThreads)
    NormSums(PeerView peers, RoundView view, SumNormArgs a) {
  AllowNextKernel();
  const int64_t width = a.scaling.width, of_owner = blockIdx.x;
  const int64_t in_round = view.mine.begin + of_owner, t = view.round.first + in_round;
  Raw<float> weight[kSteps];
  LoadSteps<true>(a.scaling.weight, width, weight);
  WaitForPriorKernels();
  if (in_round >= view.live(a)) return;
  Raw<float> before[kSteps] = {};
  if (!a.begins) LoadSteps<true>(static_cast<const float*>(a.residual[t]), width, before);
  Vector values[kSteps] = {};
  const auto* parts = WindowBehind<uint4>(peers);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = NormChannel(s);
    if (i >= width) continue;
    Sums sums;
    for (int rank = 0; rank < peers.size; ++rank) {
      sums.Add(rank == peers.rank ? *reinterpret_cast<const uint4*>(a.x[t] + i)
                                  : __ldcg(parts + view.PartOf(rank, of_owner) + i / kVector));
    }
    values[s] = Unpack(sums.Rounded());
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[s].v[c] += before[s].v[c];
  }
  NormToken<true>(values, weight, a.scaling,
                  NormedToken<float>{t, a.residual[t], a.out[t], a.quantized});
  if (!view.round.owned) return;
  for (int hop = 1; hop < peers.size; ++hop) {
    auto* to = WindowAhead<BF16>(peers, (peers.rank + hop) % peers.size) + in_round * width;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (NormChannel(s) < width) StoreVector<true>(to, NormChannel(s), width, values[s]);
    }
  }
}

// A block takes a token that another rank has normed.
template <int kSteps>
__global__ void __launch_bounds__(kNormThreads)
    TakeNormed(PeerView peers, RoundView view, SumNormArgs a) {
  AfterPriorKernels();
  const int64_t in_round = blockIdx.x, t = view.round.first + in_round, width = a.scaling.width;
  if (in_round >= view.live(a)) return;
  if (in_round >= view.mine.begin && in_round < view.mine.end) return;
  const auto* normed = WindowBehind<uint4>(peers) + in_round * view.per_token;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = NormChannel(s);
    const uint4 piece = i < width ? __ldcg(normed + i / kVector) : uint4{};
    if (i < width) *reinterpret_cast<uint4*>(a.out[t] + i) = piece;
    if (a.quantized.codes != nullptr) StoreQuantized(a.quantized, t, i, width, Unpack(piece));
  }
}

// In rounds.
void SumInWindows(GpuRanks& ranks, const AllReduceNormArgs& a, cudaStream_t stream) {
  const PeerView& peers = ranks.view();
  const int64_t tokens = a.norm.x.dim(0), width = a.norm.x.dim(1);
  const auto token_bytes = static_cast<size_t>(width) * sizeof(BF16);
  const uint64_t wait_bits = WaitBits(MeetingOp::kAllReduceNorm, tokens, width);
  const SumNormArgs args = SumNormArgs::Of(a);
  const bool narrow = width <= kNormThreads * kVector;
  const auto launch = [&](auto kernel, int64_t blocks, int threads, const RoundView& view) {
    LaunchOverlapped(kernel, static_cast<unsigned>(blocks), threads, 0, stream, peers, view, args);
  };
  SumRound round;
  for (int64_t first = 0; first < tokens; first += round.count) {
    round = SumRound::At(first, tokens, token_bytes, peers.size, a.whole);
    const RoundView view{round, round.Of(peers.rank), width / kVector};
    launch(SendParts, round.count, kThreads, view);
    ranks.Meet(stream, wait_bits, [&](int from, int to) -> WindowPart {
      if (from == to) return {};
      return {from * round.each * token_bytes, round.Of(to).size() * token_bytes};
    });
    if (view.mine.size() > 0) {
      launch(narrow ? NormSums<1> : NormSums<4>, view.mine.size(), kNormThreads, view);
    }
    if (!round.owned) continue;
    ranks.Meet(stream, wait_bits, [&](int from, int to) -> WindowPart {
      if (from == to) return {};
      return {round.Of(from).begin * token_bytes, round.Of(from).size() * token_bytes};
    });
    launch(narrow ? TakeNormed<1> : TakeNormed<4>, round.count, kNormThreads, view);
  }
}

// Between linked GPUs, up to what packets hold.
void SumInPackets(const GpuRanks& ranks, const AllReduceNormArgs& a, cudaStream_t stream) {
  const bool narrow = a.norm.x.dim(1) <= kNormThreads * kVector;
  ForMostRanks(ranks.size(), [&](auto most) {
    LaunchOverlapped(narrow ? SumNorm<1, most()> : SumNorm<4, most()>,
                     static_cast<unsigned>(a.norm.x.dim(0)), kNormThreads, 0, stream, ranks.view(),
                     SumNormArgs::Of(a));
  });
}

}  // namespace kernels

void AllReduceNormCuda(OpContext& context, const AllReduceNormArgs& a) {
  const TensorView& x = a.norm.x;
  if (x.dim(0) == 0) return;
  using namespace kernels;
  CHECK(x.dtype() == DType::kBF16 && NormsVectors(a.norm) && x.dim(1) <= kMostNormWidth,
        "all_reduce_norm: x is {}, or tokens do not lie as vectors do", x.ToString());
  auto& ranks = static_cast<GpuRanks&>(*a.ranks);
  const cudaStream_t stream = Cuda(context).get();
  if (ranks.linked() && GoesInPackets(x.dim(0), x.dim(1), ranks.size())) {
    SumInPackets(ranks, a, stream);
  } else {
    SumInWindows(ranks, a, stream);
  }
  Cuda(context).CheckLaunch("all_reduce_norm", x);
}

}  // namespace fathom
