// RMSNorm on CUDA, with the residual's addition.
//   formula:       out = x / sqrt(mean(x^2) + eps) * weight; residual += x first, where there is
//   one data mapping:  a block of 256 threads per token; the row is read twice, the second time
//   from L1 bytes, FLOPs:  reads x (and residual), writes out (and residual): 2 to 8 bytes a
//   number; 4 FLOP accumulator:   fp32 per thread, then a tree over the block expected time: one
//   launch (3 us) for up to 128 tokens of 7168; not measured
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

__global__ void RmsNorm(Rows<const BF16> x, Rows<BF16> residual, const float* weight, float eps,
                        int64_t width, const int32_t* live, Rows<BF16> out) {
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  const BF16* row = x[t];
  if (residual.data != nullptr) {
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      Store(residual[t] + i, Load(residual[t] + i) + Load(row + i));
    }
    row = residual[t];
  }
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) sum += Load(row + i) * Load(row + i);
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    Store(out[t] + i, Load(row + i) * scale * weight[i]);
  }
}

}  // namespace kernels

void RmsNormCuda(OpContext& context, const RmsNormArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  RmsNorm<<<static_cast<unsigned>(a.x.dim(0)), 256, 0, Cuda(context).get()>>>(
      RowsOf<const BF16>(a.x), RowsOf<BF16>(a.residual), Data<float>(a.weight), a.eps, a.x.dim(1),
      Data<int32_t>(a.live), RowsOf<BF16>(a.out));
  Cuda(context).CheckLaunch("rms_norm", a.x);
}

}  // namespace fathom
