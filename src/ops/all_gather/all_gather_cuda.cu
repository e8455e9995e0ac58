// All ranks' shares of each token, side by side, on CUDA.
//   formula:       out[t] = x of rank 0, x of rank 1, ...
//   data mapping:  rounds of as many tokens as a window holds: each rank writes its share into all
//                  windows, all meet, each copies its window out; a block takes parts of a token
//   bytes, FLOPs:  4 (ranks - 1) / ranks bytes out and in a number, and a copy; no arithmetic
//   accumulator:   none
//   expected time: [32, 129280]: 16 MB, a round: some 60 us on two H200s; not measured
#include <algorithm>

#include "ops/cuda_ops.h"
#include "parallel/peer.h"
#include "parallel/peer_rounds.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 256;

// Tokens [first, first + count) of those live, of `width` numbers; this rank has [begin, end).
struct GatherRound {
  int64_t first, count, width, begin, end;
  const int32_t* live;
};

__global__ void __launch_bounds__(kThreads)
    SendShares(PeerView peers, GatherRound round, const float* x) {
  AfterPriorKernels();
  const int64_t t = blockIdx.y, share = round.end - round.begin;
  if (round.first + t >= *round.live) return;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < share;
       i += int64_t{gridDim.x} * kThreads) {
    const float value = x[(round.first + t) * share + i];
    for (int rank = 0; rank < peers.size; ++rank) {
      WindowAhead<float>(peers, rank)[t * round.width + round.begin + i] = value;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    TakeTokens(PeerView peers, GatherRound round, float* out) {
  AfterPriorKernels();
  const int64_t t = blockIdx.y;
  if (round.first + t >= *round.live) return;
  const float* window = WindowBehind<float>(peers) + t * round.width;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < round.width;
       i += int64_t{gridDim.x} * kThreads) {
    out[(round.first + t) * round.width + i] = __ldcg(window + i);
  }
}

}  // namespace kernels

void AllGatherCuda(OpContext& context, const AllGatherArgs& a) {
  using namespace kernels;
  const int64_t tokens = a.out.dim(0), width = a.out.dim(1);
  const PeerView& peers = static_cast<PeerCommunicator&>(*a.ranks).view();
  const int64_t most = static_cast<int64_t>(PeerExchange::kWindowBytes / sizeof(float)) / width;
  CHECK(most > 0, "all_gather: {} numbers a token", width);
  const Share share = ShareOf(width, a.unit, peers.size, peers.rank);
  const cudaStream_t stream = Cuda(context).get();
  for (int64_t first = 0; first < tokens; first += most) {
    const int64_t count = std::min(most, tokens - first);
    const GatherRound round{first, count, width, share.begin, share.end, Data<int32_t>(a.live)};
    const auto grid = [&](int64_t numbers) {
      return dim3(std::min(Blocks(numbers, 4 * kThreads), 128u), static_cast<unsigned>(count));
    };
    if (share.size() > 0) {
      LaunchOverlapped(SendShares, grid(share.size()), kThreads, 0, stream, peers, round,
                       Data<const float>(a.x));
    }
    LaunchPeerBarrier(peers, stream);
    LaunchOverlapped(TakeTokens, grid(width), kThreads, 0, stream, peers, round,
                     Data<float>(a.out));
  }
  Cuda(context).CheckLaunch("all_gather", a.out);
}

}  // namespace fathom
