// Online quantisation of activations on CUDA.
//   formula:       scale = max(max|x|, 1e-10) / 448 (rounded up to a power of two);
//                  q = E4M3(x / scale)
//   data mapping:  a warp per token and run of up to 128 channels
//   bytes, FLOPs:  reads 2 or 4 bytes, writes 1 a number; a division each
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 7168; not measured
#include "products/cuda/quantize_runs.h"

#include <cuda_fp8.h>

#include "products/cuda/warp_product.cuh"

namespace fathom {
namespace kernels {

constexpr int kWarpsOfQuantize = 4;

// The greater, or NaN if either is.
__device__ inline float MaxOrNan(float a, float b) {
  return a > b || isnan(a) ? a : b;
}

__device__ inline float RoundUpToPowerOfTwo(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (bits >= 0x7f800000u || (bits & 0x7fffffu) == 0) return x;
  return __uint_as_float((bits | 0x7fffffu) + 1);
}

// Of `capacity` tokens *live * factor are there.
struct LiveTokens {
  int64_t capacity;
  const int32_t* live;
  int64_t factor;
};

template <class T>
__global__ void QuantizeRuns(Slices<const T> x, Matrices m, bool ue8m0, LiveTokens tokens,
                             QuantizedTokens out) {
  const int64_t t = blockIdx.x;
  const int64_t run = int64_t{blockIdx.y} * kWarpsOfQuantize + threadIdx.x / kWarp;
  if (t >= tokens.capacity || t >= *tokens.live * tokens.factor || run >= m.runs) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t begin = m.RunBegin(run), end = m.RunEnd(run);
  float largest = 1e-10f;
  for (int64_t k = begin + lane; k < end; k += kWarp) {
    largest = MaxOrNan(fabsf(Load(x[t] + k)), largest);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    largest = MaxOrNan(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  float scale = __fdiv_rn(largest, kE4M3Max);
  if (ue8m0) scale = RoundUpToPowerOfTwo(scale);
  for (int64_t k = begin + lane; k < end; k += kWarp) {
    const float q = __fdiv_rn(Load(x[t] + k), scale);
    out.codes[t * m.in + k].bits = __nv_cvt_float_to_fp8(q, __NV_SATFINITE, __NV_E4M3);
  }
  if (lane == 0) out.scales[t * m.runs + run] = scale;
}

}  // namespace kernels

QuantizedTokens QuantizedTokensIn(Arena& arena, const CudaWeight& w, int64_t tokens) {
  E4M3* codes = arena.Take<E4M3>(tokens * w.in);
  return {codes, arena.Take<float>(tokens * w.runs())};
}

template <class T>
void LaunchQuantizeRuns(cudaStream_t stream, const CudaWeight& w, const QuantizeRunsParams<T>& p) {
  using namespace kernels;
  const dim3 grid(static_cast<unsigned>(p.tokens), Blocks(w.runs(), kWarpsOfQuantize));
  QuantizeRuns<T><<<grid, kWarpsOfQuantize * kWarp, 0, stream>>>(
      {p.x, p.stride}, MatricesOf(&w), w.scale_ue8m0, {p.tokens, p.live, p.live_factor}, p.out);
}
template void LaunchQuantizeRuns(cudaStream_t, const CudaWeight&, const QuantizeRunsParams<BF16>&);
template void LaunchQuantizeRuns(cudaStream_t, const CudaWeight&, const QuantizeRunsParams<float>&);

}  // namespace fathom
