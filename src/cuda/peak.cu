// The limits of a GPU: plain loops that do one thing as fast as they can.
//   formula:       a sum over memory; multiply-adds in registers
//   data mapping:  blocks over all multiprocessors, 16 bytes a load, eight chains a thread
//   bytes, FLOPs:  as asked
//   accumulator:   fp32
//   expected time: what the data sheet says, less some percent
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/check.h"
#include "cuda/peak.h"
#include "cuda/wgmma_peak.h"

namespace fathom {
namespace {

constexpr int kThreads = 512, kLoops = 4096, kRuns = 5;

__global__ void ReadAll(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride),
                c = __ldcs(data + i + 2 * stride), d = __ldcs(data + i + 3 * stride);
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
    sum += c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (sum == 0x12345678) *sink = sum;  // never, but the compiler cannot know
}

__global__ void MultiplyAdd(float seed, float* sink) {
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = seed + static_cast<float>(threadIdx.x + i);
  for (int loop = 0; loop < kLoops; ++loop) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * seed + seed;
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += x[i];
  if (sum == 0.12345f) *sink = sum;
}

__global__ void MultiplyMatrices(uint32_t seed, float* sink) {
  float c[8][4] = {};
  const uint32_t a = seed + threadIdx.x, b = seed ^ threadIdx.x;
  for (int loop = 0; loop < kLoops / 8; ++loop) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %4, %5}, "
          "{%5, %4}, {%0, %1, %2, %3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(a), "r"(b));
    }
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  if (sum == 0.12345f) *sink = sum;
}

// Seconds of the fastest of five.
template <class Launch>
double Best(cudaStream_t stream, const Launch& launch) {
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  float best_ms = INFINITY;
  for (int run = 0; run < kRuns + 1; ++run) {  // the first loads the kernel
    CUDA_CHECK(cudaEventRecord(begin, stream));
    launch();
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (run > 0) best_ms = std::min(best_ms, ms);
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return best_ms * 1e-3;
}

// Zeros would be faster than what a model multiplies.
template <class Element>
void UploadNormals(CudaDevice& device, void* to) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Element> numbers(kWgmmaPeakBytes / sizeof(Element));
  for (Element& number : numbers) number = Element(normal(random));
  device.UploadBytes(to, std::as_bytes(std::span(numbers)));
}

}  // namespace

CudaPeaks MeasureCudaPeaks(CudaDevice& device, int64_t bytes) {
  const cudaStream_t stream = device.stream().get();
  const std::unique_ptr<DeviceMemory> data = device.Allocate(static_cast<size_t>(bytes));
  auto* sink = reinterpret_cast<float*>(data->data());
  const int blocks = 4 * device.multiprocessors();
  const double per_block = 2.0 * blocks * kThreads;
  CudaPeaks peaks;
  peaks.read_bandwidth = static_cast<double>(bytes) / Best(stream, [&] {
                           ReadAll<<<blocks, kThreads, 0, stream>>>(
                               reinterpret_cast<const uint4*>(data->data()), bytes / 16,
                               reinterpret_cast<uint32_t*>(data->data()));
                         });
  peaks.fp32 = per_block * 8 * kLoops /
               Best(stream, [&] { MultiplyAdd<<<blocks, kThreads, 0, stream>>>(0.5f, sink); });
  if (!device.is_hopper()) {
    peaks.bf16 = per_block / 32 * 16 * 8 * 16 * kLoops /
                 Best(stream, [&] { MultiplyMatrices<<<blocks, kThreads, 0, stream>>>(1, sink); });
    return peaks;
  }
  const int sms = device.multiprocessors();
  std::byte* const operands = data->data() + sms * kWgmmaPeakThreads * sizeof(float);
  UploadNormals<__nv_bfloat16>(device, operands);
  peaks.bf16 = sms * kWgmmaBf16Operations / Best(device.stream().get(), [&] {
                 LaunchWgmmaBf16Peak(operands, sink, sms, stream);
               });
  UploadNormals<__nv_fp8_e4m3>(device, operands);
  peaks.fp8 = sms * kWgmmaFp8Operations /
              Best(device.stream().get(), [&] { LaunchWgmmaFp8Peak(operands, sink, sms, stream); });
  return peaks;
}

std::string CudaDriverVersion() {
  int driver = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  return fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
}

}  // namespace fathom
