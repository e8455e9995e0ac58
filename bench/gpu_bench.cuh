// What GPU benchmarks share: checked calls, random data, the median of graph replays, and the two
// limits of the machine, measured in the same run.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "cuda/gpu.h"
#include "cuda/wgmma_peak.h"

namespace fathom::bench {

#define BENCH_CHECK(call)                                                                       \
  do {                                                                                          \
    const cudaError_t bench_error = (call);                                                     \
    if (bench_error != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(bench_error)); \
      std::exit(1);                                                                             \
    }                                                                                           \
  } while (false)

// Before main, because every benchmark's first call would fail otherwise.
inline const bool gpu_found = [] {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    static Gpu first(0);  // which launchers ask
    return true;
  }
  std::fprintf(stderr, "no NVIDIA GPU with a driver of version 580 or later was found (%s)\n",
               cudaGetErrorString(error));
  std::exit(1);
}();

// Device memory that lives as long as this.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    BENCH_CHECK(cudaMalloc(&data_, std::max<size_t>(1, size) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    BENCH_CHECK(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> ToHost() const {
    std::vector<T> host(size_);
    BENCH_CHECK(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

__device__ inline uint32_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 32);
}

// Numbers about 0 with a standard deviation of 1: sums of four uniform ones.
static __global__ void FillRandom(__nv_bfloat16* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    float sum = -2;
    for (int j = 0; j < 4; ++j) {
      sum += Mix((seed << 40) + 4 * i + j + 0x9e3779b97f4a7c15ull) * 0x1p-32f;
    }
    to[i] = __float2bfloat16_rn(sum * 1.7320508f);
  }
}
inline void Randomize(DeviceArray<__nv_bfloat16>& array, uint64_t seed) {
  FillRandom<<<2048, 256>>>(array.get(), array.size(), seed);
  BENCH_CHECK(cudaGetLastError());
}

// Microseconds a launch takes: the median over replays of a graph of `launches` of them, on a
// stream of its own, or on `stream`.
inline double MedianMicroseconds(int launches, int replays,
                                 const std::function<void(int, cudaStream_t)>& launch,
                                 cudaStream_t stream = nullptr) {
  const bool own = stream == nullptr;
  if (own) BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) launch(i, stream);
  BENCH_CHECK(cudaStreamEndCapture(stream, &graph));
  BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  BENCH_CHECK(cudaEventCreate(&begin));
  BENCH_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) BENCH_CHECK(cudaGraphLaunch(exec, stream));
  std::vector<float> times;
  for (int i = 0; i < replays; ++i) {
    float milliseconds;
    BENCH_CHECK(cudaEventRecord(begin, stream));
    BENCH_CHECK(cudaGraphLaunch(exec, stream));
    BENCH_CHECK(cudaEventRecord(end, stream));
    BENCH_CHECK(cudaEventSynchronize(end));
    BENCH_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    times.push_back(milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  BENCH_CHECK(cudaEventDestroy(begin));
  BENCH_CHECK(cudaEventDestroy(end));
  BENCH_CHECK(cudaGraphExecDestroy(exec));
  BENCH_CHECK(cudaGraphDestroy(graph));
  if (own) BENCH_CHECK(cudaStreamDestroy(stream));
  return 1e3 * times[times.size() / 2] / launches;
}

static __global__ void __launch_bounds__(512) CopyAll(const uint4* from, size_t count, uint4* to) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += step) {
    __stcs(to + i, __ldcs(from + i));
  }
}

static __global__ void __launch_bounds__(512)
    ReadAll(const uint4* from, size_t count, uint4* sink) {
  uint4 sum = {};
  const size_t step = size_t{gridDim.x} * blockDim.x;
#pragma unroll 8
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += step) {
    const uint4 x = __ldcs(from + i);
    sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678) *sink = sum;
}

// GB/s of copying 2 GB of random data, bytes read and written (the faster of the driver's copy and
// a plain kernel), and of reading it once.
struct Bandwidth {
  double copy, read;
};
inline Bandwidth MeasureBandwidth() {
  const size_t bytes = size_t{2} << 30;
  DeviceArray<__nv_bfloat16> from(bytes / 2), to(bytes / 2);
  Randomize(from, 5);
  const auto* source = reinterpret_cast<const uint4*>(from.get());
  auto* target = reinterpret_cast<uint4*>(to.get());
  double copy = 1e30, read = 1e30;
  for (const int blocks : {132 * 4, 132 * 16, 132 * 64}) {
    copy = std::min(copy, MedianMicroseconds(2, 10, [&](int, cudaStream_t stream) {
                      CopyAll<<<blocks, 512, 0, stream>>>(source, bytes / 16, target);
                    }));
    read = std::min(read, MedianMicroseconds(2, 10, [&](int, cudaStream_t stream) {
                      ReadAll<<<blocks, 512, 0, stream>>>(source, bytes / 16, target);
                    }));
  }
  copy = std::min(
      copy, MedianMicroseconds(2, 10, [&](int, cudaStream_t stream) {
        BENCH_CHECK(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream));
      }));
  return {2e-3 * bytes / copy, 1e-3 * bytes / read};
}

// TFLOPS of wgmma on random BF16 data in shared memory: what clocks and power allow.
inline double MatrixPeak() {
  int blocks;
  BENCH_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
  DeviceArray<__nv_bfloat16> data(kWgmmaPeakBytes / 2);
  Randomize(data, 7);
  DeviceArray<float> sink(blocks * kWgmmaPeakThreads);
  const double us = MedianMicroseconds(4, 20, [&](int, cudaStream_t stream) {
    LaunchWgmmaBf16Peak(data.get(), sink.get(), blocks, stream);
  });
  return kWgmmaBf16Operations * blocks / us * 1e-6;
}

}  // namespace fathom::bench
