// RMSNorm on CUDA, with the residual's addition.
//   formula:       out = x / sqrt(mean(x^2) + eps) * weight; residual += x first, where there is
//   one data mapping:  a block of 256 threads per token; the row is read twice, the second time
//   from L1 bytes, FLOPs:  reads x (and residual), writes out (and residual): 2 to 8 bytes a
//   number; 4 FLOP accumulator:   fp32 per thread, then a tree over the block expected time: one
//   launch (3 us) for up to 128 tokens of 7168; not measured
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

// R: of the residual.
template <class X, class R>
__global__ void __launch_bounds__(256)
    RmsNorm(Rows<const X> x, Rows<R> residual, const float* weight, float eps, int64_t width,
            const int32_t* live, Rows<BF16> out) {
  AfterPriorKernels();
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float value = Load(x[t] + i);
    if (residual.data != nullptr) {
      Store(residual[t] + i, value + Load(residual[t] + i));
      value = Load(residual[t] + i);  // as it is stored
    }
    sum += value * value;
  }
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = residual.data != nullptr ? Load(residual[t] + i) : Load(x[t] + i);
    Store(out[t] + i, value * scale * weight[i]);
  }
}

template <class X, class R>
void LaunchRmsNorm(cudaStream_t stream, const RmsNormArgs& a) {
  LaunchOverlapped(RmsNorm<X, R>, static_cast<unsigned>(a.x.dim(0)), 256, 0, stream,
                   RowsOf<const X>(a.x), RowsOf<R>(a.residual), Data<float>(a.weight), a.eps,
                   a.x.dim(1), Data<int32_t>(a.live), RowsOf<BF16>(a.out));
}

}  // namespace kernels

void RmsNormCuda(OpContext& context, const RmsNormArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const cudaStream_t stream = Cuda(context).get();
  if (a.x.dtype() == DType::kF32) {
    CHECK(a.residual.absent(), "rms_norm: x is {} beside a residual", a.x.ToString());
    LaunchRmsNorm<float, float>(stream, a);
  } else if (!a.residual.absent() && a.residual.dtype() == DType::kF32) {
    LaunchRmsNorm<BF16, float>(stream, a);
  } else {
    LaunchRmsNorm<BF16, BF16>(stream, a);
  }
  Cuda(context).CheckLaunch("rms_norm", a.x);
}

}  // namespace fathom
