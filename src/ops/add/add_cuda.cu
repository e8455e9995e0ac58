// Addition on CUDA.
//   formula:       sum += x
//   data mapping:  a block per token
//   bytes, FLOPs:  6 bytes and 1 FLOP a number
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 7168; not measured
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

__global__ void Add(Rows<const BF16> x, int64_t width, const int32_t* live, Rows<BF16> sum) {
  AfterPriorKernels();
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    Store(sum[t] + i, Load(sum[t] + i) + Load(x[t] + i));
  }
}

}  // namespace kernels

void AddCuda(OpContext& context, const AddArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  LaunchOverlapped(Add, static_cast<unsigned>(a.x.dim(0)), 256, 0, Cuda(context).get(),
                   RowsOf<const BF16>(a.x), a.x.dim(1), Data<int32_t>(a.live), RowsOf<BF16>(a.sum));
  Cuda(context).CheckLaunch("add", a.x);
}

}  // namespace fathom
