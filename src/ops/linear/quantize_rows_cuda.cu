// Quantisation of activations for FP8 products, alone and behind RMSNorm.
//   formula:       scale = max(max|x|, 1e-10) / 448 over 128 channels; code = E4M3(x / scale)
//   data mapping:  16 lanes per run, 8 channels each; the norm: a block per row, 8 channels a
//   thread bytes, FLOPs:  reads 2, writes 1 byte a channel; about 20 operations a channel
//   accumulator:   the norm's sum of squares in fp32: a thread's, then a tree
//   expected time: 4096 rows of 7168: 88 MB at the device's bandwidth
#include "ops/linear/quantize_rows_cuda.h"

#include "ops/cuda_kernels.cuh"
#include "ops/linear/quantize_vector.cuh"

namespace fathom {
namespace {

// Writes the vector's codes, and its run's scale, to one row.
__device__ __forceinline__ void StoreCodes(const QuantizedOut& out, int64_t row, int64_t width,
                                           int64_t vector, uint2 codes, float scale) {
  *reinterpret_cast<uint2*>(out.codes + row * width + vector * kVector) = codes;
  if (vector % kRunLanes == 0) out.scales[vector / kRunLanes * out.scale_pitch + row] = scale;
}

constexpr int kQuantizeThreads = 256;

__global__ void __launch_bounds__(kQuantizeThreads) QuantizeRows(const QuantizeRowsParams p) {
  WaitForPriorKernels();
  AllowNextKernel();
  const int64_t row = blockIdx.x, vector = int64_t{blockIdx.y} * kQuantizeThreads + threadIdx.x;
  if (row >= *p.live) return;
  const bool live = vector * kVector < p.channels;
  Vector x = {};
  if (live) x = Unpack(AsVectors(p.x + row * p.stride)[vector]);
  const float scale = ScaleOf(x, p.out.scale_ue8m0);
  if (!live) return;
  const uint2 codes = Codes(x, scale);
  if (p.places == nullptr) {
    StoreCodes(p.out, row, p.channels, vector, codes, scale);
  } else {
    for (int32_t copy = 0; copy < p.copies; ++copy) {
      const int32_t place = p.places[row * p.copies + copy];
      StoreCodes(p.out, place, p.channels, vector, codes, scale);
    }
  }
}

// The sum over the block's threads, in each.
__device__ float BlockSum(float x, float* scratch) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffff, x, lanes);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffff, x, lanes);
  return x;
}

// kVectors of 8 channels a thread, blockDim.x vectors apart.
template <int kVectors>
__global__ void __launch_bounds__(1024) NormQuantize(const NormQuantizeParams p) {
  __shared__ float scratch[32];
  WaitForPriorKernels();
  AllowNextKernel();
  const int64_t row = blockIdx.x, vectors = p.width / kVector;
  if (row >= *p.live) return;
  Vector x[kVectors] = {};
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int64_t vector = threadIdx.x + j * int64_t{blockDim.x};
    if (vector >= vectors) continue;
    x[j] = Unpack(AsVectors(p.x + row * p.x_stride)[vector]);
    if (p.residual != nullptr) {
      uint4* residual = reinterpret_cast<uint4*>(p.residual + row * p.width) + vector;
      const Vector before = Unpack(*residual);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[j].v[i] += before.v[i];
      *residual = Pack(x[j]);
      x[j] = Unpack(*residual);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += x[j].v[i] * x[j].v[i];
  }
  const float factor = 1.0f / sqrtf(BlockSum(sum, scratch) / static_cast<float>(p.width) + p.eps);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int64_t vector = threadIdx.x + j * int64_t{blockDim.x};
    const bool inside = vector < vectors;
    if (inside) {
      const float4* weight = reinterpret_cast<const float4*>(p.weight) + 2 * vector;
      const float4 low = weight[0], high = weight[1];
      const float w[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[j].v[i] = x[j].v[i] * factor * w[i];
      const uint4 rounded = Pack(x[j]);
      x[j] = Unpack(rounded);
      if (p.normed != nullptr) {
        reinterpret_cast<uint4*>(p.normed + row * p.width)[vector] = rounded;
      }
    }
    const float scale = ScaleOf(x[j], p.out.scale_ue8m0);
    if (inside) StoreCodes(p.out, row, p.width, vector, Codes(x[j], scale), scale);
  }
}

}  // namespace

void LaunchQuantizeRows(const QuantizeRowsParams& p, cudaStream_t stream) {
  if (p.capacity == 0) return;
  const int64_t vectors = (p.channels + kVector - 1) / kVector;
  const dim3 blocks(static_cast<unsigned>(p.capacity),
                    static_cast<unsigned>((vectors + kQuantizeThreads - 1) / kQuantizeThreads));
  kernels::LaunchOverlapped(QuantizeRows, blocks, kQuantizeThreads, 0, stream, p);
}

void LaunchNormQuantize(const NormQuantizeParams& p, cudaStream_t stream) {
  if (p.capacity == 0) return;
  // A whole number of warps, so that a run's lanes are all there.
  const int64_t vectors = p.width / kVector;
  const unsigned threads = static_cast<unsigned>(vectors <= 1024 ? (vectors + 31) / 32 * 32 : 1024);
  const auto rows = static_cast<unsigned>(p.capacity);
  if (vectors <= 1024) {
    kernels::LaunchOverlapped(NormQuantize<1>, rows, threads, 0, stream, p);
  } else {
    kernels::LaunchOverlapped(NormQuantize<2>, rows, threads, 0, stream, p);
  }
}

}  // namespace fathom
