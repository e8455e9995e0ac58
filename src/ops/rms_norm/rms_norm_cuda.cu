// RMSNorm on CUDA, with the residual's addition.
//   formula:       out = x / sqrt(mean(x^2) + eps) * weight; residual += x first, if any; for
//                  products in FP8 out's codes and scales too
//   data mapping:  a block of 256 threads per token, 8 channels a thread at a time, which stay in
//                  registers between the two passes
//   bytes, FLOPs:  reads x (and residual), writes out (and residual): 2 to 8 bytes a number; 4 FLOP
//   accumulator:   fp32 per thread, then a tree over the block
//   expected time: bytes at the bandwidth, V3, 4096 tokens: 95 us; docs/design/cuda-backend.md,
//                  "Passes"
#include "ops/cuda_ops.h"
#include "ops/norm_token.cuh"
#include "ops/quantized_copy_cuda.h"

namespace fathom {
namespace kernels {

// R: of the residual. Tokens of up to kSteps * 2048 channels.
template <class X, class R, bool kAligned, int kSteps>
__global__ void __launch_bounds__(kNormThreads)
    RmsNorm(Slices<const X> x, Slices<R> residual, Scaling scaling, const int32_t* live,
            Slices<BF16> out, QuantizedOut quantized) {
  AllowNextKernel();
  const int64_t t = blockIdx.x, width = scaling.width;
  Raw<float> weight[kSteps];
  LoadSteps<kAligned>(scaling.weight, width, weight);
  WaitForPriorKernels();
  const int32_t count = *live;  // what is read before it is there may be nobody's token
  const bool adds = residual.data != nullptr;
  Raw<X> loaded[kSteps];
  Raw<R> before[kSteps];
  LoadSteps<kAligned>(x[t], width, loaded);
  if (adds) LoadSteps<kAligned>(static_cast<const R*>(residual[t]), width, before);
  if (t >= count) return;
  Vector values[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      values[s].v[c] = Load(loaded[s].v + c);
      if (adds) values[s].v[c] += Load(before[s].v + c);
    }
  }
  NormToken<kAligned>(values, weight, scaling,
                      NormedToken<R>{t, adds ? residual[t] : nullptr, out[t], quantized});
}

template <class X, class R, bool kAligned>
void LaunchAligned(cudaStream_t stream, const RmsNormArgs& a, const QuantizedOut& quantized) {
  const int64_t width = a.x.dim(1);
  CHECK(width <= kMostNormWidth, "rms_norm: tokens of {}", width);
  CHECK(kAligned || quantized.codes == nullptr, "rms_norm: a quantised copy of unaligned tokens");
  const auto kernel =
      width <= kNormThreads * kVector ? RmsNorm<X, R, kAligned, 1> : RmsNorm<X, R, kAligned, 4>;
  LaunchOverlapped(kernel, static_cast<unsigned>(a.x.dim(0)), kNormThreads, 0, stream,
                   SlicesOf<const X>(a.x), SlicesOf<R>(a.residual),
                   Scaling{Data<float>(a.weight), a.eps, width}, Data<int32_t>(a.live),
                   SlicesOf<BF16>(a.out), quantized);
}

template <class X, class R>
void LaunchOf(cudaStream_t stream, const RmsNormArgs& a, const QuantizedOut& quantized) {
  NormsVectors(a) ? LaunchAligned<X, R, true>(stream, a, quantized)
                  : LaunchAligned<X, R, false>(stream, a, quantized);
}

}  // namespace kernels

void LaunchRmsNorm(const RmsNormArgs& a, cudaStream_t stream) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const QuantizedOut quantized = QuantizedOutOf(a.quantized);
  if (a.x.dtype() == DType::kF32) {
    CHECK(a.residual.absent(), "rms_norm: x is {} beside a residual", a.x.ToString());
    LaunchOf<float, float>(stream, a, quantized);
  } else if (!a.residual.absent() && a.residual.dtype() == DType::kF32) {
    LaunchOf<BF16, float>(stream, a, quantized);
  } else {
    LaunchOf<BF16, BF16>(stream, a, quantized);
  }
}

void RmsNormCuda(OpContext& context, const RmsNormArgs& a) {
  LaunchRmsNorm(a, Cuda(context).get());
  Cuda(context).CheckLaunch("rms_norm", a.x);
}

}  // namespace fathom
