// Linear layers on CUDA, for every format and shape: linear and head_linear.
//   formula:       out[t, h] = x[t, h] W[h]^T (linear: one h)
//   data mapping:  a warp per output and 8 tokens, 8 outputs a block; a matrix of blocks over
//                  (outputs, tokens, heads)
//   bytes, FLOPs:  weights once per 8 tokens (from L2 after the first), activations from L1;
//                  2 FLOP a weight and token
//   accumulator:   fp32, in the order of linear/product.cuh
//   expected time: [2048, 2048] BF16, 1 token: 8 MB at the device's bandwidth; not measured
#include "ops/cuda_plain_ops.h"
#include "ops/linear/bf16_product_cuda.h"
#include "ops/linear/product.cuh"
#include "ops/linear/quantize_runs_cuda.h"

namespace fathom {
namespace kernels {

constexpr int kTokens = 8, kOutputs = 8;

// Numbers [tokens, heads, in], or their codes (then of one head).
template <class X>
struct Activations {
  const X* x;
  int64_t token_stride, head_stride;
  const float* scales;  // [tokens, runs], or null
  int64_t tokens;
  const int32_t* live;
};
template <class Y>
struct Outputs {
  Y* y;
  int64_t token_stride, head_stride;
};

template <class W, class X, class Y>
__global__ void __launch_bounds__(kOutputs* kWarp)
    Product(Matrices m, Activations<X> a, Outputs<Y> out) {
  const int64_t n = int64_t{blockIdx.x} * kOutputs + threadIdx.x / kWarp;
  const int64_t first = int64_t{blockIdx.y} * kTokens, head = blockIdx.z;
  const int64_t live = min(static_cast<int64_t>(*a.live), a.tokens);
  if (n >= m.out || first >= live) return;
  ActivationRow<X> rows[kTokens];
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    const int64_t t = min(first + r, live - 1);  // what is beyond is computed, and dropped
    rows[r] = {a.x + t * a.token_stride + head * a.head_stride,
               a.scales == nullptr ? nullptr : a.scales + t * m.runs};
  }
  float sums[kTokens];
  WarpProduct<W>(m, head, n, rows, sums);
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    if (lane == r && first + r < live) {
      Store(out.y + (first + r) * out.token_stride + head * out.head_stride + n, sums[r]);
    }
  }
}

template <class W, class X>
void Launch(cudaStream_t stream, const Matrices& m, const Activations<X>& a, const TensorView& out,
            int64_t head_stride) {
  const dim3 grid(Blocks(m.out, kOutputs), Blocks(a.tokens, kTokens),
                  static_cast<unsigned>(m.count));
  if (out.dtype() == DType::kF32) {
    Product<W, X, float><<<grid, kOutputs * kWarp, 0, stream>>>(
        m, a, {Data<float>(out), out.stride(0), head_stride});
  } else {
    Product<W, X, BF16><<<grid, kOutputs * kWarp, 0, stream>>>(
        m, a, {Data<BF16>(out), out.stride(0), head_stride});
  }
}

// By tensor cores, where weights and layout allow it.
bool LaunchTensorCores(cudaStream_t stream, const CudaWeight& w, const TensorView& x,
                       int64_t x_head_stride, const TensorView& live, const TensorView& out,
                       int64_t out_head_stride, bool x_early, bool wait_first, bool hopper) {
  const Bf16ProductParams params = {.x = Data<BF16>(x),
                                    .x_stride = x.stride(0),
                                    .x_head_stride = x_head_stride,
                                    .w = reinterpret_cast<const BF16*>(w.values->data()),
                                    .count = w.count,
                                    .out = w.out,
                                    .in = w.in,
                                    .live = Data<int32_t>(live),
                                    .tokens = x.dim(0),
                                    .y = out.data(),
                                    .y_stride = out.stride(0),
                                    .y_head_stride = out_head_stride,
                                    .f32 = out.dtype() == DType::kF32,
                                    .x_early = x_early,
                                    .wait_first = wait_first,
                                    .hopper = hopper};
  if (w.format != WeightFormat::kBF16 || !Bf16ProductFits(params)) return false;
  LaunchBf16Product(params, stream);
  return true;
}

}  // namespace kernels

size_t LinearCudaWorkspace(const Stream&, const LinearArgs& a) {
  return a.weight->quantize_activations ? QuantizedRowsBytes(AsCuda(a.weight), a.x.dim(0)) : 0;
}

void LinearPlain(OpContext& context, const LinearArgs& a, bool hopper) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const CudaWeight& w = AsCuda(a.weight);
  const cudaStream_t stream = Cuda(context).get();
  const int64_t tokens = a.x.dim(0);
  const int32_t* live = Data<int32_t>(a.live);
  if (w.quantize_activations) {
    const QuantizedRows q = QuantizedRowsAt(w, tokens, context.workspace.data());
    LaunchQuantizeRuns(stream, w, Data<BF16>(a.x), a.x.stride(0), tokens, live, 1, q);
    Launch<E4M3, E4M3>(stream, MatricesOf(&w), {q.codes, w.in, 0, q.scales, tokens, live}, a.out,
                       0);
  } else if (!LaunchTensorCores(stream, w, a.x, 0, a.live, a.out, 0, /*x_early=*/false,
                                /*wait_first=*/true, hopper)) {
    WithFormat(w.format, [&](auto element) {
      Launch<decltype(element), BF16>(stream, MatricesOf(&w),
                                      {Data<BF16>(a.x), a.x.stride(0), 0, nullptr, tokens, live},
                                      a.out, 0);
    });
  }
  Cuda(context).CheckLaunch("linear", a.x);
}

void LinearCuda(OpContext& context, const LinearArgs& a) {
  LinearPlain(context, a, false);
}

void HeadLinearPlain(OpContext& context, const HeadLinearArgs& a, bool hopper) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const CudaWeight& w = AsCuda(a.weight);
  if (LaunchTensorCores(Cuda(context).get(), w, a.x, a.x.stride(1), a.live, a.out, a.out.stride(1),
                        a.beside_last, /*wait_first=*/false, hopper)) {
    return Cuda(context).CheckLaunch("head_linear", a.x);
  }
  WithFormat(w.format, [&](auto element) {
    Launch<decltype(element), BF16>(
        Cuda(context).get(), MatricesOf(&w),
        {Data<BF16>(a.x), a.x.stride(0), a.x.stride(1), nullptr, a.x.dim(0), Data<int32_t>(a.live)},
        a.out, a.out.stride(1));
  });
  Cuda(context).CheckLaunch("head_linear", a.x);
}

void HeadLinearCuda(OpContext& context, const HeadLinearArgs& a) {
  HeadLinearPlain(context, a, false);
}

}  // namespace fathom
