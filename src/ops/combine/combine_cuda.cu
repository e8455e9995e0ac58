// What the experts of all ranks made of a token, summed, on CUDA.
//   formula:       out[t] = sum over j in order of weights[t, j] y[t, j]
//   data mapping:  rounds of as many tokens as a window holds the pairs of. Warps copy pairs, or
//                  parts of few, into the windows of their ranks, between hosts into a region of
//                  each rank's own there; all meet; a thread sums 8 channels of a token
//   bytes, FLOPs:  2 bytes a channel of a pair read and written, most of them over NVLink, and read
//                  again; 2 FLOPs
//   accumulator:   fp32, over j in order, by fused multiply-adds, as moe_experts sums
//   expected time: 128 tokens of 7168 with 8 experts on each of two H200s: 7.3 MB over NVLink at
//                  334 GB/s, 22 us; with dispatch 52 us
#include <algorithm>

#include "ops/cuda_ops.h"
#include "parallel/gpu_ranks.h"
#include "parallel/peer_rounds.cuh"
#include "products/cuda/quantize_vector.cuh"

namespace fathom {
namespace kernels {

constexpr int kSendThreads = 256, kSumThreads = 128;
constexpr unsigned kSendBlocks = 1056;  // eight for each multiprocessor of an H200

// Tokens [begin, begin + count) of each rank's `each`.
struct CombineRound {
  const uint4* y;
  const int32_t *origin, *pair_live, *live, *ids;
  const float* weights;
  uint4* out;
  int64_t first, each, begin, count;
  int32_t stride, offset, topk, vectors;  // of a token
  int32_t parts;                          // that a pair is sent in, a warp each
  int32_t routed, each_rank, more;        // experts; so many of a rank, the first `more` one more
  bool linked;                            // all ranks write into one region of a window

  // Where what `rank` sends begins.
  __host__ __device__ int64_t Region(int rank) const {
    return linked ? 0 : rank * count * topk * vectors;
  }
  // Who has the expert: of shared ones this rank.
  __device__ int RankOf(int32_t expert, int own) const {
    const int32_t larger = more * (each_rank + 1);
    if (expert >= routed) return own;
    return expert < larger ? expert / (each_rank + 1) : more + (expert - larger) / each_rank;
  }
};

__global__ void __launch_bounds__(kSendThreads) SendOutputs(PeerView peers, CombineRound r) {
  AfterPriorKernels();
  constexpr int kWarps = kSendThreads / kWarp;
  const int64_t units = int64_t{*r.pair_live} * r.parts, of_rank = r.each * r.topk;
  for (int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; unit < units;
       unit += int64_t{gridDim.x} * kWarps) {
    const int64_t p = unit / r.parts, origin = r.origin[p], rank = origin / of_rank;
    const int64_t pair = origin - rank * of_rank - r.begin * r.topk;  // of the round
    if (pair < 0 || pair >= r.count * r.topk) continue;
    uint4* to =
        WindowAhead<uint4>(peers, static_cast<int>(rank)) + r.Region(peers.rank) + pair * r.vectors;
    const uint4* from = r.y + p * r.vectors;
#pragma unroll 4
    for (int64_t v = unit % r.parts * kWarp + threadIdx.x % kWarp; v < r.vectors;
         v += r.parts * kWarp) {
      to[v] = from[v];
    }
  }
}

// A block per token of the group and 8 x kSumThreads channels.
__global__ void __launch_bounds__(kSumThreads) SumOutputs(PeerView peers, CombineRound r) {
  AfterPriorKernels();
  const int64_t n = r.begin * r.stride + blockIdx.x, t = r.first + n;
  const int64_t v = int64_t{blockIdx.y} * kSumThreads + threadIdx.x;
  if (t >= *r.live || v >= r.vectors) return;
  Vector sum = {};
  if (n % r.stride == r.offset) {
    const uint4* y = WindowBehind<uint4>(peers) + (n / r.stride - r.begin) * r.topk * r.vectors + v;
#pragma unroll 3
    for (int j = 0; j < r.topk; ++j) {
      const int rank = r.linked ? 0 : r.RankOf(r.ids[t * r.topk + j], peers.rank);
      const Vector pair = Unpack(__ldcg(y + r.Region(rank) + int64_t{j} * r.vectors));
      const float weight = r.weights[t * r.topk + j];
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum.v[i] = fmaf(weight, pair.v[i], sum.v[i]);
    }
  }
  r.out[t * r.vectors + v] = Pack(sum);
}

}  // namespace kernels

void CombineCuda(OpContext& context, const CombineArgs& a) {
  using namespace kernels;
  const ExpertExchange& e = a.exchange;
  auto& ranks = static_cast<GpuRanks&>(*e.ranks);
  const PeerView& peers = ranks.view();
  const auto topk = static_cast<int32_t>(a.weights.dim(1));
  const int64_t hidden = a.out.dim(1);
  CHECK(a.out.dtype() == DType::kBF16 && hidden % kVector == 0, "combine: out is {}",
        a.out.ToString());
  const auto vectors = static_cast<int32_t>(hidden / kVector);
  const int64_t most = static_cast<int64_t>(kWindowBytes) /
                       (int64_t{topk} * vectors * 16 * (ranks.linked() ? 1 : peers.size));
  CHECK(most > 0, "combine: {} experts of {}", topk, a.out.ToString());
  constexpr int kWarps = kSendThreads / kWarp;
  const int64_t pairs = a.pair_y.dim(0), warps = int64_t{kSendBlocks} * kWarps;
  CombineRound round = {.y = Data<const uint4>(a.pair_y),
                        .origin = Data<int32_t>(a.pair_origin),
                        .pair_live = Data<int32_t>(a.pair_live),
                        .live = Data<int32_t>(a.live),
                        .ids = Data<int32_t>(a.ids),
                        .weights = Data<float>(a.weights),
                        .out = Data<uint4>(a.out),
                        .first = e.first,
                        .each = e.each,
                        .stride = e.stride,
                        .offset = e.offset,
                        .topk = topk,
                        .vectors = vectors,
                        .parts = static_cast<int32_t>(std::clamp<int64_t>(warps / pairs, 1, 8)),
                        .routed = static_cast<int32_t>(e.routed),
                        .each_rank = static_cast<int32_t>(e.routed / peers.size),
                        .more = static_cast<int32_t>(e.routed % peers.size),
                        .linked = ranks.linked()};
  const uint64_t wait_bits = WaitBits(MeetingOp::kCombine, a.out.dim(0), hidden);
  const cudaStream_t stream = Cuda(context).get();
  const unsigned send_blocks = std::min(Blocks(pairs * round.parts, kWarps), kSendBlocks);
  for (; round.begin < e.each; round.begin += round.count) {
    round.count = std::min(most, e.each - round.begin);
    LaunchOverlapped(SendOutputs, send_blocks, kSendThreads, 0, stream, peers, round);
    ranks.Meet(stream, wait_bits, [&round](int from, int) -> WindowPart {
      return {static_cast<size_t>(round.Region(from)) * sizeof(uint4),
              static_cast<size_t>(round.count * round.topk * round.vectors) * sizeof(uint4)};
    });
    const dim3 blocks(static_cast<unsigned>(round.count * e.stride), Blocks(vectors, kSumThreads));
    LaunchOverlapped(SumOutputs, blocks, kSumThreads, 0, stream, peers, round);
  }
  Cuda(context).CheckLaunch("combine", a.out);
}

}  // namespace fathom
