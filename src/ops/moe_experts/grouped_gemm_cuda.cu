// Sorting pairs by expert, their copies of tokens, and the sum over a token's experts.
//   formula:       out[t] = sum over j of weights[t, j] y[places[t, j]]
//   data mapping:  sort: one block, or a cluster of eight, counts in shared memory; copies: a
//                  thread per 8 channels
//   bytes, FLOPs:  sum: reads 2 topk, writes 2 bytes a channel of a token; 2 topk FLOPs; gather: as
//                  many bytes the other way
//   accumulator:   fp32, over j in order
//   expected time: sum, 4096 tokens of 7168, top 9: 587 MB at the device's bandwidth
#include "cuda/kernels.cuh"
#include "cuda/launch_clusters.cuh"
#include "ops/cuda_ops.h"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "ops/norm_token.cuh"
#include "products/cuda/quantize_vector.cuh"

namespace fathom {
namespace {

constexpr int kSortThreads = 1024, kMaxExperts = kMostExperts;
constexpr int64_t kClusterPairs = 4096;  // for more, a cluster of blocks
static_assert(kMaxExperts <= 512);       // an id takes nine bits of what is kept

// The pairs of expert t in all blocks, and in those before this one.
struct PairsOfExpert {
  int32_t all = 0, before = 0;
};
template <int kBlocks>
__device__ PairsOfExpert CountPairs(const int32_t* count, int t) {
  PairsOfExpert pairs;
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) {
    const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(count + t));
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t there, value;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
      asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
      pairs.all += static_cast<int32_t>(value);
      if (block < static_cast<int>(blockIdx.x)) pairs.before += static_cast<int32_t>(value);
    }
    return pairs;
  }
#endif
  pairs.all = count[t];
  return pairs;
}

// Of all threads of all blocks.
template <int kBlocks>
__device__ void SyncBlocks() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kBlocks > 1) return ClusterSync();
#endif
  __syncthreads();
}

// kBlocks: of the grid, one cluster. Each thread keeps the ids of its first pairs, and their ranks
// among the block's pairs of that expert.
template <int kBlocks, int kKept>
__global__ void __launch_bounds__(kSortThreads) SortPairs(const SortPairsParams p) {
  __shared__ int32_t count[kMaxExperts], begin[kMaxExperts];
  __shared__ int32_t warp_sum[kMaxExperts / 32];
  const int t = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kSortThreads + t;
  constexpr int64_t kStep = kBlocks * kSortThreads;
  if (t < kMaxExperts) count[t] = 0;
  kernels::AfterPriorKernels();
  __syncthreads();
  const int64_t pairs = min(int64_t{*p.live}, p.tokens) * p.topk;
  int32_t kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * kStep < pairs) kept[i] = p.ids[first + i * kStep];
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * kStep < pairs) kept[i] |= atomicAdd(&count[kept[i]], 1) << 9;
  }
  for (int64_t i = first + kKept * kStep; i < pairs; i += kStep) {
    p.places[i] = atomicAdd(&count[p.ids[i]], 1);
  }
  SyncBlocks<kBlocks>();
  PairsOfExpert of_expert;
  int32_t sum = 0;
  if (t < kMaxExperts) {
    of_expert = CountPairs<kBlocks>(count, t);
    sum = of_expert.all;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, sum, step);
      if (t % 32 >= step) sum += before;
    }
    if (t % 32 == 31) warp_sum[t / 32] = sum;
  }
  SyncBlocks<kBlocks>();  // from here on no block reads what another holds
  if (t < kMaxExperts) {
    for (int warp = 0; warp < t / 32; ++warp) sum += warp_sum[warp];
    sum -= of_expert.all;
    begin[t] = sum + of_expert.before;
    if (blockIdx.x == 0 && t < p.experts) {
      p.counts[t] = of_expert.all;
      p.begins[t] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * kStep < pairs)
      p.places[first + i * kStep] = begin[kept[i] & 511] + (kept[i] >> 9);
  }
  for (int64_t i = first + kKept * kStep; i < pairs; i += kStep) p.places[i] += begin[p.ids[i]];
}

constexpr int kGatherThreads = 256, kCombineThreads = 128;
// Of more tokens a token is read once for all its copies; of fewer each copy has blocks of its own.
constexpr int64_t kFewTokens = 512;

// To kCopies places from kCopies * blockIdx.z on.
template <int kCopies>
__global__ void __launch_bounds__(kGatherThreads) GatherPairs(const GatherPairsParams p) {
  kernels::AfterPriorKernels();
  const int64_t t = blockIdx.x, vector = int64_t{blockIdx.y} * kGatherThreads + threadIdx.x;
  const int32_t first = static_cast<int32_t>(blockIdx.z) * kCopies;
  if (vector >= p.hidden / kVector) return;
  const uint4 x = AsVectors(p.x + t * p.stride)[vector];  // does not wait for `live`
  int32_t place[kCopies];
#pragma unroll
  for (int j = 0; j < kCopies; ++j) {
    if (first + j < p.topk) place[j] = p.places[t * p.topk + first + j];
  }
  if (t >= *p.live) return;
#pragma unroll
  for (int j = 0; j < kCopies; ++j) {
    if (first + j >= p.topk) break;
    reinterpret_cast<uint4*>(p.x_of_pairs + place[j] * p.hidden)[vector] = x;
  }
}

// Which pairs a token's result is the sum of, up to kAtOnce from `first` on.
template <int kAtOnce>
struct Terms {
  __device__ Terms(const CombineParams& p, int64_t t, int32_t first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j >= p.topk) break;
      const int64_t pair = t * p.topk + first + j;
      weight[j] = p.weights[pair];
      place[j] = p.places == nullptr ? static_cast<int32_t>(pair) : p.places[pair];
    }
  }
  float weight[kAtOnce];
  int32_t place[kAtOnce];
};

// sum += weights[j] y[places[j]] of the terms, of which `count` are there; kVector channels from
// `vector` on.
template <int kAtOnce>
__device__ void AddTerms(const CombineParams& p, const Terms<kAtOnce>& terms, int count,
                         int64_t vector, Vector& sum) {
  uint4 pairs[kAtOnce];
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    if (j >= count) break;
    pairs[j] = AsVectors(p.y)[terms.place[j] * (p.hidden / kVector) + vector];
  }
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    if (j >= count) break;
    const Vector pair = Unpack(pairs[j]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.v[i] = fmaf(terms.weight[j], pair.v[i], sum.v[i]);
  }
}

template <int kAtOnce>
__global__ void __launch_bounds__(kCombineThreads) Combine(const CombineParams p) {
  AllowNextKernel();
  const int64_t t = blockIdx.x, vectors = p.hidden / kVector;
  const int64_t vector = int64_t{blockIdx.y} * kCombineThreads + threadIdx.x;
  // These were there before the two products that made y, of which the first waited before it let
  // the second begin.
  const int32_t live = *p.live;
  Terms<kAtOnce> terms(p, t, 0);
  WaitForPriorKernels();
  if (vector >= vectors) return;
  if (p.places != nullptr && t >= live) return;  // else all pairs are there, and are read meanwhile
  Vector sum = {};
  for (int32_t first = 0; first < p.topk; first += kAtOnce) {
    if (first > 0) terms = Terms<kAtOnce>(p, t, first);
    AddTerms(p, terms, p.topk - first, vector, sum);
  }
  if (t < live) reinterpret_cast<uint4*>(p.out)[t * vectors + vector] = Pack(sum);
}

// The sum, and what rms_norm makes of it as BF16 holds it.
template <int kAtOnce>
__global__ void __launch_bounds__(kernels::kNormThreads)
    CombineNorm(const CombineParams p, const kernels::AddedNorm norm) {
  AllowNextKernel();
  const int64_t t = blockIdx.x, channel = kernels::NormChannel(0);
  const int32_t live = *p.live;
  Terms<kAtOnce> terms(p, t, 0);
  kernels::AddedToken token;
  token.LoadWeight(norm);
  WaitForPriorKernels();
  token.LoadResidual(norm, t);
  if (p.places != nullptr && t >= live) return;
  Vector sum = {};
  for (int32_t first = 0; first < p.topk && channel < p.hidden; first += kAtOnce) {
    if (first > 0) terms = Terms<kAtOnce>(p, t, first);
    AddTerms(p, terms, p.topk - first, channel / kVector, sum);
  }
  if (t >= live) return;
  token.Add(Pack(sum));
  token.Norm(norm, {t, norm.residual[t], norm.out[t], norm.quantized});
}

}  // namespace

void LaunchSortPairs(const SortPairsParams& p, cudaStream_t stream) {
  constexpr int kBlocks = 8;
  if (p.tokens * p.topk <= kClusterPairs || !p.on_hopper) {
    return kernels::LaunchOverlapped(SortPairs<1, 1>, 1, kSortThreads, 0, stream, p);
  }
  LaunchClusters(SortPairs<kBlocks, 8>, {.blocks = kBlocks, .threads = kSortThreads}, stream, p);
}

void LaunchGatherPairs(const GatherPairsParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  const auto launch = [&](auto kernel, int copies) {
    const dim3 blocks(static_cast<unsigned>(p.tokens),
                      kernels::Blocks(p.hidden / kVector, kGatherThreads),
                      kernels::Blocks(p.topk, copies));
    kernels::LaunchOverlapped(kernel, blocks, kGatherThreads, 0, stream, p);
  };
  if (p.tokens <= kFewTokens) return launch(GatherPairs<1>, 1);
  p.topk == 9 ? launch(GatherPairs<9>, 9) : launch(GatherPairs<8>, 8);
}

void LaunchCombine(const CombineParams& p, const RmsNormArgs& norm, cudaStream_t stream) {
  if (p.tokens == 0) return;
  const auto tokens = static_cast<unsigned>(p.tokens);
  const bool nine = p.topk == 9;
  // Prompts gain nothing.
  if (p.tokens <= kFewTokens && kernels::IsAddedNorm(norm)) {
    return kernels::LaunchOverlapped(nine ? CombineNorm<9> : CombineNorm<8>, tokens,
                                     kernels::kNormThreads, 0, stream, p,
                                     kernels::AddedNormOf(norm));
  }
  const dim3 blocks(tokens, kernels::Blocks(p.hidden / kVector, kCombineThreads));
  kernels::LaunchOverlapped(nine ? Combine<9> : Combine<8>, blocks, kCombineThreads, 0, stream, p);
  if (!norm.absent()) LaunchRmsNorm(norm, stream);
}

}  // namespace fathom
