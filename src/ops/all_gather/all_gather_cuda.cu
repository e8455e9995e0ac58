// All ranks' shares of each token, side by side, on CUDA.
//   formula:       out[t] = x of rank 0, x of rank 1, ...
//   data mapping:  rounds of as many tokens as a window holds: each rank writes its shares, one
//                  after another, into all windows, all meet, each puts together what came; a block
//                  takes parts of a rank's share of a token
//   bytes, FLOPs:  4 (ranks - 1) / ranks bytes out and in a number, and a copy; no arithmetic
//   accumulator:   none
//   expected time: [32, 129280]: 16 MB, a round: 34 us on two H200s
#include <algorithm>

#include "ops/cuda_ops.h"
#include "parallel/gpu_ranks.h"
#include "parallel/peer_rounds.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 256;

// Tokens [first, first + count) of those live. Rank r has numbers [begins[r], begins[r + 1]) of
// each, in windows from count * begins[r] on.
struct GatherRound {
  int64_t first, count;
  int64_t begins[kMostGpuRanks + 1];
  const int32_t* live;

  __host__ __device__ int64_t Share(int rank) const { return begins[rank + 1] - begins[rank]; }
};

__global__ void __launch_bounds__(kThreads)
    SendShares(PeerView peers, const __grid_constant__ GatherRound round, const float* x) {
  AfterPriorKernels();
  const int64_t t = blockIdx.y, share = round.Share(peers.rank);
  const int64_t at = round.count * round.begins[peers.rank] + t * share;
  if (round.first + t >= *round.live) return;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < share;
       i += int64_t{gridDim.x} * kThreads) {
    const float value = x[(round.first + t) * share + i];
    for (int rank = 0; rank < peers.size; ++rank) WindowAhead<float>(peers, rank)[at + i] = value;
  }
}

__global__ void __launch_bounds__(kThreads)
    TakeTokens(PeerView peers, const __grid_constant__ GatherRound round, float* out) {
  AfterPriorKernels();
  const int64_t t = blockIdx.y, width = round.begins[peers.size];
  const int rank = static_cast<int>(blockIdx.z);
  const int64_t begin = round.begins[rank], share = round.Share(rank);
  if (round.first + t >= *round.live) return;
  const float* window = WindowBehind<float>(peers) + round.count * begin + t * share;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < share;
       i += int64_t{gridDim.x} * kThreads) {
    out[(round.first + t) * width + begin + i] = __ldcg(window + i);
  }
}

}  // namespace kernels

void AllGatherCuda(OpContext& context, const AllGatherArgs& a) {
  using namespace kernels;
  const int64_t tokens = a.out.dim(0), width = a.out.dim(1);
  auto& ranks = static_cast<GpuRanks&>(*a.ranks);
  const PeerView& peers = ranks.view();
  const int64_t most = static_cast<int64_t>(kWindowBytes / sizeof(float)) / width;
  CHECK(most > 0, "all_gather: {} numbers a token", width);
  GatherRound round{.live = Data<int32_t>(a.live)};
  int64_t widest = 0;
  for (int rank = 0; rank < peers.size; ++rank) {
    round.begins[rank + 1] = ShareOf(width, a.unit, peers.size, rank).end;
    widest = std::max(widest, round.Share(rank));
  }
  const int64_t own = round.Share(peers.rank);
  const uint64_t wait_bits = WaitBits(MeetingOp::kAllGather, tokens, width);
  const cudaStream_t stream = Cuda(context).get();
  for (round.first = 0; round.first < tokens; round.first += most) {
    round.count = std::min(most, tokens - round.first);
    const auto grid = [&](int64_t numbers, int of_ranks) {
      return dim3(std::min(Blocks(numbers, 4 * kThreads), 128u), static_cast<unsigned>(round.count),
                  static_cast<unsigned>(of_ranks));
    };
    if (own > 0) {
      LaunchOverlapped(SendShares, grid(own, 1), kThreads, 0, stream, peers, round,
                       Data<const float>(a.x));
    }
    ranks.Meet(stream, wait_bits, [&round](int from, int) -> WindowPart {
      return {sizeof(float) * static_cast<size_t>(round.count * round.begins[from]),
              sizeof(float) * static_cast<size_t>(round.count * round.Share(from))};
    });
    LaunchOverlapped(TakeTokens, grid(widest, peers.size), kThreads, 0, stream, peers, round,
                     Data<float>(a.out));
  }
  Cuda(context).CheckLaunch("all_gather", a.out);
}

}  // namespace fathom
