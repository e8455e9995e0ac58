// The matrix units' limit on Hopper, on random data: what clocks and power allow.
//   formula:       two warpgroups a block multiply operands out of shared memory, over and over
//   data mapping:  BF16: 64 x 64 by 64 x 256 each; E4M3: 64 x 128 by 128 x 128 each
//   bytes, FLOPs:  none but the operands once; wgmma_peak.h
//   accumulator:   fp32
//   expected time: what the data sheet says, less what power takes: bench/results/h200
#include "cuda/check.h"
#include "cuda/wgmma_bf16.h"
#include "cuda/wgmma_fp8.h"
#include "cuda/wgmma_peak.h"

namespace fathom {
namespace {

__device__ void LoadOperands(const uint4* data, uint8_t* memory, int bytes) {
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kWgmmaPeakThreads) {
    reinterpret_cast<uint4*>(memory)[i] = data[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

template <int kCount>
__device__ void Keep(const float (&d)[kCount], float* sink) {
  float sum = 0;
  for (int i = 0; i < kCount; ++i) sum += d[i];
  sink[blockIdx.x * kWgmmaPeakThreads + threadIdx.x] = sum;
}

__global__ void __launch_bounds__(kWgmmaPeakThreads, 1) Bf16Peak(const uint4* data, float* sink) {
  extern __shared__ __align__(1024) uint8_t memory[];
  LoadOperands(data, memory, kWgmmaPeakBytes);
  float d[128] = {};
  const uint32_t a = WgmmaOperand(SharedAddress(memory));
  const uint32_t b = WgmmaOperand(SharedAddress(memory + 8192), 8192);
  for (int i = 0; i < 4096; ++i) {
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      WgmmaBf16<256>::Add<Major::kK, Major::kMn>(d, a + 2 * k, b + 128 * k, true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
  }
  WgmmaHold(d);
  Keep(d, sink);
}

__global__ void __launch_bounds__(kWgmmaPeakThreads, 1) Fp8Peak(const uint4* data, float* sink) {
  extern __shared__ __align__(1024) uint8_t memory[];
  LoadOperands(data, memory, 32768);
  const uint32_t a = WgmmaOperand(SharedAddress(memory) + threadIdx.x / 128 * 8192);
  const uint32_t b = WgmmaOperand(SharedAddress(memory) + 16384);
  float d[64] = {};
  for (int i = 0; i < 1024; ++i) {
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 32; ++k) WgmmaE4M3(d, a + 2 * (k % 4), b + 2 * (k % 4), true);
    WgmmaCommit();
    WgmmaWait<0>();
  }
  WgmmaHold(d);
  Keep(d, sink);
}

}  // namespace

void LaunchWgmmaBf16Peak(const void* data, float* sink, int blocks, cudaStream_t stream) {
  Bf16Peak<<<blocks, kWgmmaPeakThreads, kWgmmaPeakBytes, stream>>>(static_cast<const uint4*>(data),
                                                                   sink);
}

void LaunchWgmmaFp8Peak(const void* data, float* sink, int blocks, cudaStream_t stream) {
  Fp8Peak<<<blocks, kWgmmaPeakThreads, 32768, stream>>>(static_cast<const uint4*>(data), sink);
}

}  // namespace fathom
