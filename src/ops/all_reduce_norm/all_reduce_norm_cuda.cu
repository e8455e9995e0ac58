// The sum of all ranks' parts on CUDA, and the norm that follows.
//   formula:       s = the sum over ranks of x, in their order, rounded to BF16;
//                  residual += s, then rms_norm of it
//   data mapping:  up to kPacketBytes between linked GPUs one launch: a block sends a token to all
//                  peers as packets with an epoch, sums what comes, and norms it (sum_norm.cuh).
//                  Else: rounds in which each rank sums the tokens that it owns, and hands the sums
//                  to all; then rms_norm
//   bytes, FLOPs:  small: 4 (ranks - 1) bytes out and in a number; large: 4 (ranks - 1) / ranks;
//                  ranks FLOPs a number; and the norm's
//   accumulator:   fp32; the same bits in both forms
//   expected time: 14 to 229 KB on two H200s: 2.4 us more than the norm (docs/ranks.md)
//   builds on:     one-shot exchange in packets of data and flag, as NCCL's LL protocol; for more,
//                  reduce-scatter and all-gather (Rabenseifner 2004)
#include <algorithm>

#include "ops/all_reduce_norm/sum_norm.cuh"
#include "ops/cuda_ops.h"
#include "parallel/gpu_ranks.h"
#include "parallel/peer_rounds.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 128;

template <int kSteps>
__global__ void __launch_bounds__(kNormThreads) SumNorm(PeerView peers, SumNormArgs args) {
  SumNormToken<kSteps>(peers, args, blockIdx.x, gridDim.x);
}

// Where the sums go, and the residual, if it begins with them: with zeros, to which they are added.
struct SumsOut {
  uint4* sums;
  float4* residual;

  __device__ void Put(int64_t piece, uint4 sum) const {
    sums[piece] = sum;
    if (residual != nullptr) residual[2 * piece] = residual[2 * piece + 1] = {};
  }
};

// A round of a large message: pieces [first, first + count) of the live ones, of which rank r owns
// [r, r + 1) * each.
struct Round {
  int64_t first, count, each, per_token;
  const int32_t* live;

  // What a rank owns, live or not.
  WindowPart PartOf(int rank) const {
    const int64_t begin = std::min(count, rank * each);
    return {static_cast<size_t>(begin) * sizeof(uint4),
            static_cast<size_t>(std::min(count, begin + each) - begin) * sizeof(uint4)};
  }
  __device__ int64_t end() const {
    const int64_t left = *live * per_token - first;
    return left < count ? left : count;
  }
};

// Each owner's window gets this rank's part of what it owns: [rank][each].
__global__ void __launch_bounds__(kThreads) SendParts(PeerView peers, Round round, const uint4* x) {
  AfterPriorKernels();
  const int64_t end = round.end();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end;
       i += int64_t{gridDim.x} * kThreads) {
    const int owner = static_cast<int>(i / round.each);
    if (owner == peers.rank) continue;
    WindowAhead<uint4>(peers, owner)[peers.rank * round.each + i % round.each] = x[round.first + i];
  }
}

// The sums of what this rank owns, into all windows: [count].
__global__ void __launch_bounds__(kThreads) SumOwned(PeerView peers, Round round, const uint4* x) {
  AfterPriorKernels();
  const int64_t begin = peers.rank * round.each;
  const int64_t end = min(round.end(), begin + round.each);
  const uint4* parts = WindowBehind<uint4>(peers);
  for (int64_t i = begin + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end;
       i += int64_t{gridDim.x} * kThreads) {
    Sums sums;
    for (int rank = 0; rank < peers.size; ++rank) {
      sums.Add(rank == peers.rank ? x[round.first + i]
                                  : __ldcg(parts + rank * round.each + i - begin));
    }
    const uint4 sum = sums.Rounded();
    for (int rank = 0; rank < peers.size; ++rank) WindowAhead<uint4>(peers, rank)[i] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) TakeSums(PeerView peers, Round round, SumsOut out) {
  AfterPriorKernels();
  const int64_t end = round.end();
  const uint4* sums = WindowBehind<uint4>(peers);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end;
       i += int64_t{gridDim.x} * kThreads) {
    out.Put(round.first + i, __ldcg(sums + i));
  }
}

// A large message in rounds.
void SumLarge(GpuRanks& ranks, const RmsNormArgs& norm, const SumsOut& out, cudaStream_t stream) {
  const PeerView& peers = ranks.view();
  const int64_t per_token = norm.x.dim(1) / kVector, pieces = norm.x.dim(0) * per_token;
  const auto* x = Data<const uint4>(norm.x);
  const uint64_t wait_bits = WaitBits(MeetingOp::kAllReduceNorm, norm.x.dim(0), norm.x.dim(1));
  constexpr int64_t kMost = kWindowBytes / sizeof(uint4);
  for (int64_t first = 0; first < pieces; first += kMost / peers.size * peers.size) {
    const int64_t count = std::min(pieces - first, kMost / peers.size * peers.size);
    const Round round{first, count, (count + peers.size - 1) / peers.size, per_token,
                      Data<int32_t>(norm.live)};
    const unsigned blocks = std::min(Blocks(count, kThreads), 1024u);
    LaunchOverlapped(SendParts, blocks, kThreads, 0, stream, peers, round, x);
    ranks.Meet(stream, wait_bits, [&round](int from, int to) -> WindowPart {
      if (from == to) return {};
      return {static_cast<size_t>(from * round.each) * sizeof(uint4), round.PartOf(to).bytes};
    });
    LaunchOverlapped(SumOwned, blocks, kThreads, 0, stream, peers, round, x);
    ranks.Meet(stream, wait_bits, [&round](int from, int) { return round.PartOf(from); });
    LaunchOverlapped(TakeSums, blocks, kThreads, 0, stream, peers, round, out);
  }
}

// A small one; false if it is too large for packets, or its tokens do not lie as vectors do.
bool SumSmall(const GpuRanks& ranks, const AllReduceNormArgs& a, cudaStream_t stream) {
  const RmsNormArgs& norm = a.norm;
  const int64_t width = norm.x.dim(1);
  const size_t bytes = static_cast<size_t>(norm.x.elements()) * sizeof(BF16);
  if (!ranks.linked() || bytes > PeerExchange::kPacketBytes || !NormsVectors(norm)) return false;
  CHECK(width <= kMostNormWidth, "all_reduce_norm: tokens of {}", width);
  const auto kernel = width <= kNormThreads * kVector ? SumNorm<1> : SumNorm<4>;
  LaunchOverlapped(kernel, static_cast<unsigned>(norm.x.dim(0)), kNormThreads, 0, stream,
                   ranks.view(), SumNormArgs::Of(a));
  return true;
}

}  // namespace kernels

// The sums.
size_t AllReduceNormCudaWorkspace(const Stream&, const AllReduceNormArgs& a) {
  return static_cast<size_t>(a.norm.x.elements()) * sizeof(BF16);
}

void AllReduceNormCuda(OpContext& context, const AllReduceNormArgs& a) {
  const TensorView& x = a.norm.x;
  if (x.dim(0) == 0) return;
  using namespace kernels;
  CHECK(x.dtype() == DType::kBF16 && x.dim(1) % kVector == 0, "all_reduce_norm: x is {}",
        x.ToString());
  auto& ranks = static_cast<GpuRanks&>(*a.ranks);
  const cudaStream_t stream = Cuda(context).get();
  if (SumSmall(ranks, a, stream)) return Cuda(context).CheckLaunch("all_reduce_norm", x);
  const SumsOut out{reinterpret_cast<uint4*>(context.workspace.data()),
                    a.begins ? Data<float4>(a.norm.residual) : nullptr};
  SumLarge(ranks, a.norm, out, stream);
  Cuda(context).CheckLaunch("all_reduce_norm", x);
  RmsNormArgs norm = a.norm;
  norm.x = TensorView(out.sums, DType::kBF16, {x.dim(0), x.dim(1)});
  RmsNormCuda(context, norm);
}

}  // namespace fathom
