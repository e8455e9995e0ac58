// RMSNorm on CUDA, with the residual's addition.
//   formula:       out = x / sqrt(mean(x^2) + eps) * weight; residual += x first, if any; for
//                  products in FP8 out's codes and scales too
//   data mapping:  a block of 256 threads per token, 8 channels a thread at a time, which stay in
//                  registers between the two passes
//   bytes, FLOPs:  reads x (and residual), writes out (and residual): 2 to 8 bytes a number; 4 FLOP
//   accumulator:   fp32 per thread, then a tree over the block
//   expected time: one launch (3 us) for up to 128 tokens of 7168; docs/design/cuda-backend.md
#include "ops/cuda_kernels.cuh"
#include "ops/cuda_plain_ops.h"
#include "ops/linear/quantize_rows_cuda.h"
#include "ops/linear/quantize_vector.cuh"

namespace fathom {
namespace kernels {

constexpr int kThreads = 256;

// kVector numbers from i on; zeros beyond the row.
template <bool kAligned, class T>
__device__ void LoadVector(const T* row, int64_t i, int64_t width, float (&x)[kVector]) {
  if constexpr (kAligned && sizeof(T) == 2) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + i);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x[2 * c] = __uint_as_float(words[c] << 16);
      x[2 * c + 1] = __uint_as_float(words[c] & 0xffff0000u);
    }
  } else if constexpr (kAligned) {
    const float4 a = reinterpret_cast<const float4*>(row + i)[0];
    const float4 b = reinterpret_cast<const float4*>(row + i)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
#pragma unroll
    for (int c = 0; c < kVector; ++c) x[c] = i + c < width ? Load(row + i + c) : 0;
  }
}
template <bool kAligned, class T>
__device__ void StoreVector(T* row, int64_t i, int64_t width, const float (&x)[kVector]) {
  if constexpr (kAligned) {
    alignas(16) T y[kVector];
#pragma unroll
    for (int c = 0; c < kVector; ++c) Store(y + c, x[c]);
#pragma unroll
    for (int c = 0; c < static_cast<int>(sizeof(y) / 16); ++c) {
      reinterpret_cast<uint4*>(row + i)[c] = reinterpret_cast<const uint4*>(y)[c];
    }
  } else {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      if (i + c < width) Store(row + i + c, x[c]);
    }
  }
}

__device__ __forceinline__ Vector ToVector(const float (&x)[kVector]) {
  return {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
}
// The codes of kVector numbers as BF16 holds them, from i on. Whole warps. A call: it is long, and
// the kernel has up to four.
__device__ __noinline__ void StoreQuantized(const QuantizedOut& to, int64_t row, int64_t i,
                                            int64_t width, Vector x) {
#pragma unroll
  for (int c = 0; c < kVector; ++c) x.v[c] = __bfloat162float(__float2bfloat16_rn(x.v[c]));
  const float scale = ScaleOf(x, to.scale_ue8m0);
  if (i < width) StoreCodes(to, row, width, i / kVector, Codes(x, scale), scale);
}

// R: of the residual. Rows of up to kSteps * 2048 channels.
template <class X, class R, bool kAligned, int kSteps>
__global__ void __launch_bounds__(kThreads)
    RmsNorm(Rows<const X> x, Rows<R> residual, const float* weight, float eps, int64_t width,
            const int32_t* live, Rows<BF16> out, QuantizedOut quantized) {
  AllowNextKernel();
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x, first = int64_t{threadIdx.x} * kVector;
  float values[kSteps][kVector], w[kSteps][kVector], sum = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = first + s * kThreads * kVector;
    if (i < width) LoadVector<kAligned>(weight, i, width, w[s]);
  }
  WaitForPriorKernels();
  const int32_t count = *live;  // what is read before it is there may be nobody's row
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = first + s * kThreads * kVector;
    if (i >= width) break;
    LoadVector<kAligned>(x[t], i, width, values[s]);
    if (residual.data == nullptr) continue;
    float before[kVector];
    LoadVector<kAligned>(static_cast<const R*>(residual[t]), i, width, before);
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[s][c] += before[c];
  }
  if (t >= count) return;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = first + s * kThreads * kVector;
    if (i >= width) break;
    if (residual.data != nullptr) StoreVector<kAligned>(residual[t], i, width, values[s]);
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum += values[s][c] * values[s][c];
  }
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = first + s * kThreads * kVector;
    const bool inside = i < width;
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[s][c] = inside ? values[s][c] * (scale * w[s][c]) : 0;
    if (inside) StoreVector<kAligned>(out[t], i, width, values[s]);
    if constexpr (kAligned) {
      if (quantized.codes != nullptr) StoreQuantized(quantized, t, i, width, ToVector(values[s]));
    }
  }
}

template <class X, class R, bool kAligned>
void LaunchAligned(cudaStream_t stream, const RmsNormArgs& a, const QuantizedOut& quantized) {
  const int64_t width = a.x.dim(1);
  CHECK(width <= 4 * kThreads * kVector, "rms_norm: rows of {}", width);
  CHECK(kAligned || quantized.codes == nullptr, "rms_norm: a quantised copy of unaligned rows");
  const auto kernel =
      width <= kThreads * kVector ? RmsNorm<X, R, kAligned, 1> : RmsNorm<X, R, kAligned, 4>;
  LaunchOverlapped(kernel, static_cast<unsigned>(a.x.dim(0)), kThreads, 0, stream,
                   RowsOf<const X>(a.x), RowsOf<R>(a.residual), Data<float>(a.weight), a.eps, width,
                   Data<int32_t>(a.live), RowsOf<BF16>(a.out), quantized);
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
  const QuantizedOut quantized = QuantizedOutOf(context.stream, a.quantized);
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
