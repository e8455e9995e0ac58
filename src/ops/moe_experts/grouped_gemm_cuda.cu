// Sorting pairs by expert, and the sum over a token's experts.
//   formula:       out[t] = sum over j of weights[t, j] y[places[t, j]]
//   data mapping:  sort: one block, counts in shared memory; sum: a thread per 8 channels
//   bytes, FLOPs:  sum: reads 2 topk, writes 2 bytes a channel of a token; 2 topk FLOPs
//   accumulator:   fp32, over j in order
//   expected time: sum, 4096 tokens of 7168, top 8: 528 MB at the device's bandwidth
#include "ops/cuda_kernels.cuh"
#include "ops/moe_experts/grouped_gemm_cuda.h"

namespace fathom {
namespace {

constexpr int kSortThreads = 1024, kMaxExperts = kMostExperts;

__global__ void __launch_bounds__(kSortThreads) SortPairs(const SortPairsParams p) {
  __shared__ int32_t count[kMaxExperts], next[kMaxExperts];
  __shared__ int32_t warp_sum[kMaxExperts / 32];
  const int t = threadIdx.x;
  if (t < kMaxExperts) count[t] = 0;
  kernels::AfterPriorKernels();
  __syncthreads();
  const int64_t pairs = min(int64_t{*p.live}, p.tokens) * p.topk;
  for (int64_t i = t; i < pairs; i += kSortThreads) atomicAdd(&count[p.ids[i]], 1);
  __syncthreads();
  int32_t sum = 0;
  if (t < kMaxExperts) {
    sum = count[t];
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(0xffffffff, sum, step);
      if (t % 32 >= step) sum += before;
    }
    if (t % 32 == 31) warp_sum[t / 32] = sum;
  }
  __syncthreads();
  if (t < kMaxExperts) {
    for (int warp = 0; warp < t / 32; ++warp) sum += warp_sum[warp];
    next[t] = sum - count[t];
    if (t < p.experts) {
      p.counts[t] = count[t];
      p.begins[t] = sum - count[t];
    }
  }
  __syncthreads();
  for (int64_t i = t; i < pairs; i += kSortThreads) p.places[i] = atomicAdd(&next[p.ids[i]], 1);
}

constexpr int kCombineThreads = 128, kCombineAtOnce = 8;

// Which rows a token's result is the sum of, some at once.
struct Terms {
  __device__ Terms(const CombineParams& p, int64_t t, int32_t first) {
#pragma unroll
    for (int i = 0; i < kCombineAtOnce; ++i) {
      const int64_t pair = t * p.topk + min(first + i, p.topk - 1);
      weight[i] = p.weights[pair];
      place[i] = p.places == nullptr ? pair : p.places[pair];
    }
  }
  float weight[kCombineAtOnce];
  int64_t place[kCombineAtOnce];
};

__global__ void __launch_bounds__(kCombineThreads) Combine(const CombineParams p) {
  AllowNextKernel();
  const int64_t t = blockIdx.x, vector = int64_t{blockIdx.y} * kCombineThreads + threadIdx.x;
  // These were there before the product that made y, which waited before it let this begin.
  const int32_t live = *p.live;
  Terms terms(p, t, 0);
  WaitForPriorKernels();
  if (vector >= p.hidden / 8) return;
  if (p.places != nullptr && t >= live) return;  // else the rows are there, and are read meanwhile
  float sum[8] = {};
  for (int32_t first = 0; first < p.topk; first += kCombineAtOnce) {
    if (first > 0) terms = Terms(p, t, first);
    uint4 bits[kCombineAtOnce];
#pragma unroll
    for (int j = 0; j < kCombineAtOnce; ++j) {
      bits[j] = reinterpret_cast<const uint4*>(p.y + terms.place[j] * p.hidden)[vector];
    }
#pragma unroll
    for (int j = 0; j < kCombineAtOnce; ++j) {
      if (first + j >= p.topk) break;
      const float weight = terms.weight[j];
      const uint32_t words[4] = {bits[j].x, bits[j].y, bits[j].z, bits[j].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[2 * i] = fmaf(weight, __uint_as_float(words[i] << 16), sum[2 * i]);
        sum[2 * i + 1] = fmaf(weight, __uint_as_float(words[i] & 0xffff0000), sum[2 * i + 1]);
      }
    }
  }
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    words[i] = reinterpret_cast<const uint32_t&>(pair);
  }
  if (t >= live) return;
  reinterpret_cast<uint4*>(p.out + t * p.hidden)[vector] = {words[0], words[1], words[2], words[3]};
}

}  // namespace

void LaunchSortPairs(const SortPairsParams& p, cudaStream_t stream) {
  kernels::LaunchOverlapped(SortPairs, 1, kSortThreads, 0, stream, p);
}

void LaunchCombine(const CombineParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  const dim3 blocks(static_cast<unsigned>(p.tokens),
                    static_cast<unsigned>((p.hidden / 8 + kCombineThreads - 1) / kCombineThreads));
  kernels::LaunchOverlapped(Combine, blocks, kCombineThreads, 0, stream, p);
}

}  // namespace fathom
