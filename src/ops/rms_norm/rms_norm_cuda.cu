// RMSNorm on CUDA, with the residual's addition.
//   formula:       out = x / sqrt(mean(x^2) + eps) * weight; residual += x first, if any; for
//                  products in FP8 out's codes and scales too
//   data mapping:  a block of 256 threads per token, 8 channels a thread at a time, which stay in
//                  registers between the two passes
//   bytes, FLOPs:  reads x (and residual), writes out (and residual): 2 to 8 bytes a number; 4 FLOP
//   accumulator:   fp32 per thread, then a tree over the block
//   expected time: bytes at the bandwidth, V3, 4096 tokens: 95 us; docs/design/cuda-backend.md,
//                  "Passes"
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/cuda/quantize_vector.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 256;

// kVector numbers as they lie in memory.
template <class T>
struct alignas(16) Raw {
  T v[kVector];
};

// Those from i on; zeros beyond the width. It only loads, so that those that follow are on their
// way together.
template <bool kAligned, class T>
__device__ __forceinline__ Raw<T> LoadRaw(const T* from, int64_t i, int64_t width) {
  Raw<T> raw = {};
  if constexpr (kAligned) {
    constexpr int kPieces = sizeof(raw) / sizeof(uint4);
    if (i < width) {
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        reinterpret_cast<uint4*>(raw.v)[c] = reinterpret_cast<const uint4*>(from + i)[c];
      }
    }
  } else {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      if (i + c < width) raw.v[c] = from[i + c];
    }
  }
  return raw;
}
template <bool kAligned, class T>
__device__ void StoreVector(T* to, int64_t i, int64_t width, const Vector& x) {
  if constexpr (kAligned) {
    alignas(16) T y[kVector];
#pragma unroll
    for (int c = 0; c < kVector; ++c) Store(y + c, x.v[c]);
#pragma unroll
    for (int c = 0; c < static_cast<int>(sizeof(y) / 16); ++c) {
      reinterpret_cast<uint4*>(to + i)[c] = reinterpret_cast<const uint4*>(y)[c];
    }
  } else {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      if (i + c < width) Store(to + i + c, x.v[c]);
    }
  }
}

// The codes of kVector numbers as BF16 holds them, from i on. Whole warps.
__device__ __forceinline__ void StoreQuantized(const QuantizedOut& to, int64_t token, int64_t i,
                                               int64_t width, Vector x) {
#pragma unroll
  for (int c = 0; c < kVector; ++c) x.v[c] = __bfloat162float(__float2bfloat16_rn(x.v[c]));
  const float scale = ScaleOf(x, to.scale_ue8m0);
  if (i < width) StoreCodes(to, token, width, i / kVector, Codes(x, scale), scale);
}

struct Scaling {
  const float* weight;
  float eps;
  int64_t width;
};

// R: of the residual. Tokens of up to kSteps * 2048 channels.
template <class X, class R, bool kAligned, int kSteps>
__global__ void __launch_bounds__(kThreads)
    RmsNorm(Slices<const X> x, Slices<R> residual, Scaling scaling, const int32_t* live,
            Slices<BF16> out, QuantizedOut quantized) {
  AllowNextKernel();
  const int64_t width = scaling.width;
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x, first = int64_t{threadIdx.x} * kVector;
  const auto at = [&](int s) { return first + s * kThreads * kVector; };
  Raw<float> w[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) w[s] = LoadRaw<kAligned>(scaling.weight, at(s), width);
  WaitForPriorKernels();
  const int32_t count = *live;  // what is read before it is there may be nobody's token
  Raw<X> loaded[kSteps];
  Raw<R> before[kSteps];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) loaded[s] = LoadRaw<kAligned>(x[t], at(s), width);
  if (residual.data != nullptr) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) before[s] = LoadRaw<kAligned>(residual[t], at(s), width);
  }
  if (t >= count) return;
  Vector values[kSteps];
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[s].v[c] = Load(loaded[s].v + c);
    if (residual.data != nullptr) {
#pragma unroll
      for (int c = 0; c < kVector; ++c) values[s].v[c] += Load(before[s].v + c);
      if (at(s) < width) StoreVector<kAligned>(residual[t], at(s), width, values[s]);
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum += values[s].v[c] * values[s].v[c];
  }
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + scaling.eps);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = at(s);
    const bool inside = i < width;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      values[s].v[c] = inside ? values[s].v[c] * (scale * w[s].v[c]) : 0;
    }
    if (inside) StoreVector<kAligned>(out[t], i, width, values[s]);
    if constexpr (kAligned) {
      if (quantized.codes != nullptr) StoreQuantized(quantized, t, i, width, values[s]);
    }
  }
}

template <class X, class R, bool kAligned>
void LaunchAligned(cudaStream_t stream, const RmsNormArgs& a, const QuantizedOut& quantized) {
  const int64_t width = a.x.dim(1);
  CHECK(width <= 4 * kThreads * kVector, "rms_norm: tokens of {}", width);
  CHECK(kAligned || quantized.codes == nullptr, "rms_norm: a quantised copy of unaligned tokens");
  const auto kernel =
      width <= kThreads * kVector ? RmsNorm<X, R, kAligned, 1> : RmsNorm<X, R, kAligned, 4>;
  LaunchOverlapped(kernel, static_cast<unsigned>(a.x.dim(0)), kThreads, 0, stream,
                   SlicesOf<const X>(a.x), SlicesOf<R>(a.residual),
                   Scaling{Data<float>(a.weight), a.eps, width}, Data<int32_t>(a.live),
                   SlicesOf<BF16>(a.out), quantized);
}

template <class X, class R>
void LaunchRmsNorm(cudaStream_t stream, const RmsNormArgs& a, const QuantizedOut& quantized) {
  bool aligned =
      a.x.dim(1) % kVector == 0 && reinterpret_cast<uintptr_t>(a.weight.data()) % 16 == 0;
  for (const TensorView* view : {&a.x, &a.residual, &a.out}) {
    if (view->absent()) continue;
    aligned = aligned && view->stride(0) % kVector == 0 &&
              reinterpret_cast<uintptr_t>(view->data()) % 16 == 0;
  }
  aligned ? LaunchAligned<X, R, true>(stream, a, quantized)
          : LaunchAligned<X, R, false>(stream, a, quantized);
}

}  // namespace kernels

void RmsNormCuda(OpContext& context, const RmsNormArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const cudaStream_t stream = Cuda(context).get();
  const QuantizedOut quantized = QuantizedOutOf(a.quantized);
  if (a.x.dtype() == DType::kF32) {
    CHECK(a.residual.absent(), "rms_norm: x is {} beside a residual", a.x.ToString());
    LaunchRmsNorm<float, float>(stream, a, quantized);
  } else if (!a.residual.absent() && a.residual.dtype() == DType::kF32) {
    LaunchRmsNorm<BF16, float>(stream, a, quantized);
  } else {
    LaunchRmsNorm<BF16, BF16>(stream, a, quantized);
  }
  Cuda(context).CheckLaunch("rms_norm", a.x);
}

}  // namespace fathom
