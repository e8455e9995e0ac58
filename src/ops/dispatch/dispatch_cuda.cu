// Tokens to the ranks that have their experts, on CUDA.
//   formula:       pair_x[p] = x[t] of the rank and the token that the pair is of
//   data mapping:  rounds of as many tokens as a window holds. Each rank writes its tokens and
//                  their experts' ids into all windows, a block a token; all meet; a block looks at
//                  a token of a rank, takes places for its pairs, and copies it to each
//   bytes, FLOPs:  2 (ranks - 1) bytes a channel of a token out and in; then 2 bytes a channel of a
//                  token read, and of a pair written; no arithmetic
//   accumulator:   none
//   expected time: 128 tokens of 7168 on each of two H200s: 1.8 MB over NVLink and 18 MB written;
//                  with combine 52 us
//   builds on:     an all-gather of tokens: with eight experts of many nearly every rank has one
#include <algorithm>

#include "ops/cuda_ops.h"
#include "parallel/gpu_ranks.h"
#include "parallel/peer_rounds.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 256, kMostExperts = 64;  // of a token

// Tokens [begin, begin + count) of each rank's `each`.
struct DispatchRound {
  const uint4* x;
  const int32_t *ids, *live;
  int64_t first, each, begin, count;
  int32_t stride, offset, topk, vectors;  // of a token
  int32_t routed, first_expert, experts;  // of this rank
  uint4* pair_x;
  int32_t *pair_ids, *pair_origin, *pair_live, pairs;

  // How many of `each` are live.
  __device__ int64_t Sent() const {
    const int64_t left = *live - first - offset;
    return left <= 0 ? 0 : min(each, (left + stride - 1) / stride);
  }
};

// A rank's part of a window: how many tokens it sends in all rounds, then ids, then tokens.
struct RankWindow {
  static constexpr int64_t kHeader = 16;
  __host__ __device__ static int64_t IdBytes(int64_t tokens, int32_t topk) {
    return (tokens * topk * 4 + 15) / 16 * 16;
  }
  __host__ __device__ static int64_t Bytes(int64_t tokens, int32_t topk, int32_t vectors) {
    return kHeader + IdBytes(tokens, topk) + tokens * vectors * 16;
  }
  __device__ RankWindow(std::byte* window, int rank, const DispatchRound& r)
      : at(window + rank * Bytes(r.count, r.topk, r.vectors)),
        ids(reinterpret_cast<int32_t*>(at + kHeader)),
        x(reinterpret_cast<uint4*>(at + kHeader + IdBytes(r.count, r.topk))) {}
  __device__ int32_t* sent() const { return reinterpret_cast<int32_t*>(at); }
  std::byte* at;
  int32_t* ids;
  uint4* x;
};

__global__ void __launch_bounds__(kThreads) SendTokens(PeerView peers, DispatchRound r) {
  AfterPriorKernels();
  const int64_t n = blockIdx.x, sent = r.Sent();
  const int64_t t = r.first + r.offset + (r.begin + n) * r.stride;
  if (n == 0 && r.begin == 0 && threadIdx.x == 0) *r.pair_live = 0;
  for (int hop = 1; hop <= peers.size; ++hop) {
    const int rank = (peers.rank + hop) % peers.size;
    const RankWindow window(WindowAhead<std::byte>(peers, rank), peers.rank, r);
    if (n == 0 && threadIdx.x == 0) *window.sent() = static_cast<int32_t>(sent);
    if (r.begin + n >= sent) continue;
    if (threadIdx.x < r.topk) {
      window.ids[n * r.topk + threadIdx.x] = r.ids[t * r.topk + threadIdx.x];
    }
    for (int64_t v = threadIdx.x; v < r.vectors; v += kThreads) {
      window.x[n * r.vectors + v] = r.x[t * r.vectors + v];
    }
  }
}

// Takes places for those of a token's pairs whose experts are this rank's; -1 for others. One warp.
__device__ void PlacePairs(const PeerView& peers, const DispatchRound& r, const int32_t* ids,
                           int64_t token, int32_t* place) {
  const int source = static_cast<int>(blockIdx.y);
  for (int first = 0; first < r.topk; first += kWarp) {
    const int j = first + static_cast<int>(threadIdx.x);
    const int32_t id = j < r.topk ? __ldcg(ids + j) : -1;
    const bool shared = id >= r.routed;
    const int32_t local = shared ? r.experts + id - r.routed : id - r.first_expert;
    const bool here = id >= 0 && (shared ? source == peers.rank : local >= 0 && local < r.experts);
    const unsigned all = __ballot_sync(kAllLanes, here);
    int32_t at = 0;
    if (threadIdx.x == 0 && all != 0) at = atomicAdd(r.pair_live, __popc(all));
    at = __shfl_sync(kAllLanes, at, 0) + __popc(all & ((1u << threadIdx.x) - 1));
    if (j < r.topk) place[j] = here ? at : -1;
    if (!here) continue;
    DEVICE_CHECK(at < r.pairs, "dispatch: pair", at);
    r.pair_ids[at] = local;
    r.pair_origin[at] = static_cast<int32_t>((source * r.each + token) * r.topk + j);
  }
}

__global__ void __launch_bounds__(kThreads) TakePairs(PeerView peers, DispatchRound r) {
  __shared__ int32_t place[kMostExperts];
  AfterPriorKernels();
  const int64_t n = blockIdx.x;
  const RankWindow window(WindowBehind<std::byte>(peers), static_cast<int>(blockIdx.y), r);
  if (r.begin + n >= __ldcg(window.sent())) return;
  if (threadIdx.x < kWarp) PlacePairs(peers, r, window.ids + n * r.topk, r.begin + n, place);
  __syncthreads();
  for (int64_t v = threadIdx.x; v < r.vectors; v += kThreads) {
    const uint4 x = __ldcg(window.x + n * r.vectors + v);
    for (int j = 0; j < r.topk; ++j) {
      if (place[j] >= 0) r.pair_x[int64_t{place[j]} * r.vectors + v] = x;
    }
  }
}

}  // namespace kernels

void DispatchCuda(OpContext& context, const DispatchArgs& a) {
  using namespace kernels;
  const ExpertExchange& e = a.exchange;
  auto& ranks = static_cast<GpuRanks&>(*e.ranks);
  const PeerView& peers = ranks.view();
  const auto topk = static_cast<int32_t>(a.ids.dim(1));
  const int64_t hidden = a.x.dim(1);
  CHECK(a.x.dtype() == DType::kBF16 && hidden % 8 == 0 && topk <= kMostExperts,
        "dispatch: {} experts of {}", topk, a.x.ToString());
  const auto vectors = static_cast<int32_t>(hidden / 8);
  const auto window = static_cast<int64_t>(kWindowBytes) / peers.size;
  const int64_t most = (window - RankWindow::kHeader - 16) / (vectors * 16 + topk * 4);
  const Share experts = ShareOf(e.routed, 1, peers.size, peers.rank);
  DispatchRound round = {.x = Data<const uint4>(a.x),
                         .ids = Data<int32_t>(a.ids),
                         .live = Data<int32_t>(a.live),
                         .first = e.first,
                         .each = e.each,
                         .stride = e.stride,
                         .offset = e.offset,
                         .topk = topk,
                         .vectors = vectors,
                         .routed = static_cast<int32_t>(e.routed),
                         .first_expert = static_cast<int32_t>(experts.begin),
                         .experts = static_cast<int32_t>(experts.size()),
                         .pair_x = Data<uint4>(a.pair_x),
                         .pair_ids = Data<int32_t>(a.pair_ids),
                         .pair_origin = Data<int32_t>(a.pair_origin),
                         .pair_live = Data<int32_t>(a.pair_live),
                         .pairs = static_cast<int32_t>(a.pair_ids.dim(0))};
  const uint64_t wait_bits = WaitBits(MeetingOp::kDispatch, a.x.dim(0), hidden);
  const cudaStream_t stream = Cuda(context).get();
  for (; round.begin < e.each; round.begin += round.count) {
    round.count = std::min(most, e.each - round.begin);
    const auto blocks = static_cast<unsigned>(round.count);
    LaunchOverlapped(SendTokens, blocks, kThreads, 0, stream, peers, round);
    ranks.Meet(stream, wait_bits, [&round](int from, int) -> WindowPart {
      const auto bytes =
          static_cast<size_t>(RankWindow::Bytes(round.count, round.topk, round.vectors));
      return {static_cast<size_t>(from) * bytes, bytes};
    });
    LaunchOverlapped(TakePairs, dim3(blocks, static_cast<unsigned>(peers.size)), kThreads, 0,
                     stream, peers, round);
  }
  Cuda(context).CheckLaunch("dispatch", a.x);
}

}  // namespace fathom
