// The product of CUDA GPUs for every format and shape.
//   formula:       y[t, h] = x[t, h] W[h]^T
//   data mapping:  a warp per output and 8 tokens, 8 outputs a block; a matrix of blocks over
//                  (outputs, tokens, heads)
//   bytes, FLOPs:  weights once per 8 tokens (from L2 after the first), activations from L1;
//                  2 FLOP a weight and token
//   accumulator:   fp32, in the order of warp_product.cuh
//   expected time: [2048, 2048] BF16, 1 token: 8 MB at the device's bandwidth; not measured
#include "products/cuda/plain_product.h"

#include "products/cuda/warp_product.cuh"

namespace fathom {
namespace kernels {

constexpr int kTokens = 8, kOutputs = 8;

// Numbers [tokens, heads, in], or their codes (then of one head).
template <class X>
struct Inputs {
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
    Product(Matrices m, Inputs<X> a, Outputs<Y> out) {
  const int64_t n = int64_t{blockIdx.x} * kOutputs + threadIdx.x / kWarp;
  const int64_t first = int64_t{blockIdx.y} * kTokens, head = blockIdx.z;
  const int64_t live = min(static_cast<int64_t>(*a.live), a.tokens);
  if (n >= m.out || first >= live) return;
  ActivationsOfToken<X> own[kTokens];
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    const int64_t t = min(first + r, live - 1);  // what is beyond is computed, and dropped
    own[r] = {a.x + t * a.token_stride + head * a.head_stride,
              a.scales == nullptr ? nullptr : a.scales + t * m.runs};
  }
  float sums[kTokens];
  WarpProduct<W>(m, head, n, own, sums);
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    if (lane == r && first + r < live) {
      Store(out.y + (first + r) * out.token_stride + head * out.head_stride + n, sums[r]);
    }
  }
}

template <class W, class X>
void LaunchProduct(const PlainProductParams& p, const Inputs<X>& a, cudaStream_t stream) {
  const Matrices m = MatricesOf(p.weight);
  const dim3 grid(Blocks(m.out, kOutputs), Blocks(a.tokens, kTokens),
                  static_cast<unsigned>(m.count));
  if (p.f32) {
    Product<W, X, float><<<grid, kOutputs * kWarp, 0, stream>>>(
        m, a, {static_cast<float*>(p.y), p.y_stride, p.y_head_stride});
  } else {
    Product<W, X, BF16><<<grid, kOutputs * kWarp, 0, stream>>>(
        m, a, {static_cast<BF16*>(p.y), p.y_stride, p.y_head_stride});
  }
}

}  // namespace kernels

void LaunchPlainProduct(const PlainProductParams& p, cudaStream_t stream) {
  using namespace kernels;
  if (p.tokens == 0) return;
  if (p.quantized.codes != nullptr) {
    LaunchProduct<E4M3, E4M3>(
        p, {p.quantized.codes, p.weight->in, 0, p.quantized.scales, p.tokens, p.live}, stream);
    return;
  }
  WithFormat(p.weight->format, [&](auto element) {
    LaunchProduct<decltype(element), BF16>(
        p, {p.x, p.x_stride, p.x_head_stride, nullptr, p.tokens, p.live}, stream);
  });
}

}  // namespace fathom
