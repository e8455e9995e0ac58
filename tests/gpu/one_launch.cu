#include "tests/gpu/one_launch.h"

#include <vector>

#include "cuda/check.h"
#include "ops/all_reduce_norm/sum_norm.cuh"

namespace fathom {
namespace kernels {

__global__ void MeetAll(const PeerView* views, uint64_t wait_bits) {
  MeetPeers(views[blockIdx.x], wait_bits);
}

template <int kSteps, int kMost>
__global__ void __launch_bounds__(kNormThreads)
    SumNormAll(const PeerView* views, const SumNormArgs* args) {
  SumNormToken<kSteps, kMost>(views[blockIdx.y], args[blockIdx.y], blockIdx.x, gridDim.x);
}

}  // namespace kernels

void MeetInOneLaunch(const PeerView* views, int ranks, uint64_t wait_bits, cudaStream_t stream) {
  kernels::MeetAll<<<static_cast<unsigned>(ranks), kWarp, 0, stream>>>(views, wait_bits);
  CUDA_CHECK(cudaGetLastError());
}

size_t SumNormInOneLaunchBytes(size_t ranks) {
  return ranks * sizeof(kernels::SumNormArgs);
}

void SumNormInOneLaunch(const PeerView* views, int size, std::span<const AllReduceNormArgs> ranks,
                        void* workspace, cudaStream_t stream) {
  using namespace kernels;
  std::vector<SumNormArgs> args;
  for (const AllReduceNormArgs& rank : ranks) args.push_back(SumNormArgs::Of(rank));
  CUDA_CHECK(cudaMemcpyAsync(workspace, args.data(), args.size() * sizeof(SumNormArgs),
                             cudaMemcpyHostToDevice, stream));
  const TensorView& x = ranks[0].norm.x;
  const bool narrow = x.dim(1) <= kNormThreads * kVector;
  const dim3 blocks(static_cast<unsigned>(x.dim(0)), static_cast<unsigned>(ranks.size()));
  ForMostRanks(size, [&](auto most) {
    const auto kernel = narrow ? SumNormAll<1, most()> : SumNormAll<4, most()>;
    kernel<<<blocks, kNormThreads, 0, stream>>>(views, static_cast<const SumNormArgs*>(workspace));
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace fathom
