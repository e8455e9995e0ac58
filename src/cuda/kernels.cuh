// What the portable kernels are made of: element access, sums over warps and blocks, live counts.
//
// Sums over threads are taken in a tree that depends on the block's size alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstdio>

#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/warp.h"
#include "quant/e4m3.h"
#include "tensor/tensor_view.h"

namespace fathom::kernels {

// A bug found on the device: says where, and fails the device at the next synchronisation.
#define DEVICE_CHECK(condition, name, value)                                                  \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      printf("%s:%d: %s is %lld\n", __FILE__, __LINE__, name, static_cast<long long>(value)); \
      __trap();                                                                               \
    }                                                                                         \
  } while (false)

__device__ inline float Load(const float* p) {
  return *p;
}
__device__ inline float Load(const BF16* p) {
  return __uint_as_float(static_cast<uint32_t>(p->bits) << 16);
}
__device__ inline float Load(const F16* p) {
  return __half2float(__ushort_as_half(p->bits));
}
__device__ inline float Load(const E4M3* p) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(p->bits, __NV_E4M3)));
}
__device__ inline void Store(float* p, float x) {
  *p = x;
}
__device__ inline void Store(BF16* p, float x) {
  p->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// The slices of dimension 0 of a view.
template <class T>
struct Slices {
  T* data;
  int64_t stride;
  __device__ T* operator[](int64_t i) const { return data + i * stride; }
};
template <class T>
Slices<T> SlicesOf(const TensorView& view) {
  return {static_cast<T*>(view.data()), view.rank() == 0 ? 0 : view.stride(0)};
}
template <class T>
T* Data(const TensorView& view) {
  return static_cast<T*>(view.data());
}

__device__ inline float WarpSum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline float WarpMax(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}

// The sum over all threads of a block, in each of them. `scratch` holds 32 values; the block
// synchronises before it is used again.
template <class T, class Combine>
__device__ T BlockReduce(T x, T identity, T* scratch, const Combine& combine) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < static_cast<int>(blockDim.x / kWarp) ? scratch[lane] : identity;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  return x;
}
struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Whether a ranks above b: the greater number; a NaN ranks below every number.
__device__ inline bool RanksAbove(float a, float b) {
  return a > b || (isnan(b) && !isnan(a));
}

// The first statement of a kernel that LaunchOverlapped() launches, in every thread: the next
// kernel may begin to start, and what the kernels before wrote is there.
__device__ inline void AfterPriorKernels() {
  AllowNextKernel();
  WaitForPriorKernels();
}

// Launches a kernel whose blocks may start while the one before it ends (programmatic dependent
// launch), from sm_90 on.
template <class... Params, class... Args>
void LaunchOverlapped(void (*kernel)(Params...), dim3 grid, int threads, size_t shared,
                      cudaStream_t stream, const Args&... args) {
  Gpu& gpu = Gpu::OfThread();
  if (gpu.overlaps_kernels()) {
    gpu.Check(LaunchEarly(kernel, grid, threads, shared, stream, Params(args)...));
  } else {
    kernel<<<grid, threads, shared, stream>>>(Params(args)...);
  }
}

inline unsigned Blocks(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace fathom::kernels
