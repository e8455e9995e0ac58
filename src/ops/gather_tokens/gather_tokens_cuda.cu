// Gathering of tokens on CUDA.
//   formula:       out[i] = x[index[i]]
//   data mapping:  a block per token and 4096 numbers
//   bytes, FLOPs:  reads and writes each number once; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 7168; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kThreads = 256, kNumbers = 4096;  // of a block

template <class T>
__global__ void __launch_bounds__(kThreads)
    GatherTokens(Slices<const T> x, int64_t tokens, int64_t width, const int32_t* index,
                 const int32_t* live, Slices<T> out) {
  AfterPriorKernels();
  const int64_t i = blockIdx.x;
  if (i >= *live) return;
  const int32_t from = index[i];
  DEVICE_CHECK(from >= 0 && from < tokens, "gather_tokens: token", from);
  const int64_t begin = int64_t{blockIdx.y} * kNumbers + threadIdx.x;
  T numbers[kNumbers / kThreads];  // all on their way before the first is stored
#pragma unroll
  for (int c = 0; c < kNumbers / kThreads; ++c) {
    if (begin + c * kThreads < width) numbers[c] = x[from][begin + c * kThreads];
  }
#pragma unroll
  for (int c = 0; c < kNumbers / kThreads; ++c) {
    if (begin + c * kThreads < width) out[i][begin + c * kThreads] = numbers[c];
  }
}

template <class T>
void LaunchGatherTokens(cudaStream_t stream, const GatherTokensArgs& a) {
  const dim3 grid(static_cast<unsigned>(a.index.dim(0)), Blocks(a.x.dim(1), kNumbers));
  LaunchOverlapped(GatherTokens<T>, grid, kThreads, 0, stream, SlicesOf<const T>(a.x), a.x.dim(0),
                   a.x.dim(1), Data<int32_t>(a.index), Data<int32_t>(a.live), SlicesOf<T>(a.out));
}

}  // namespace kernels

void GatherTokensCuda(OpContext& context, const GatherTokensArgs& a) {
  if (a.index.dim(0) == 0) return;
  const bool bf16 = a.x.dtype() == DType::kBF16;
  (bf16 ? kernels::LaunchGatherTokens<BF16>
        : kernels::LaunchGatherTokens<float>)(Cuda(context).get(), a);
  Cuda(context).CheckLaunch("gather_tokens", a.out);
}

}  // namespace fathom
