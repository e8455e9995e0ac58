// Sampling: the op of the CUDA table, microseconds a launch. Medians of graph replays over logits
// of several steps; these stay in the L2, as the logits of a step do, which lm_head has just
// written.
//
//     sample_bench
#include <array>

#include "bench/gpu_bench.cuh"
#include "cuda/device.h"
#include "ops/cuda_ops.h"

namespace fathom::bench {
namespace {

struct Request {
  const char* name;
  float temperature, top_p, min_p;
  int32_t top_k;
};
constexpr Request kRequests[] = {{"greedy", 0, 1, 0, 0},
                                 {"temperature 1", 1, 1, 0, 0},
                                 {"0.6, top_p 0.95", 0.6f, 0.95f, 0, 0},
                                 {"1, top_k 50", 1, 1, 0, 50},
                                 {"1, min_p 0.05", 1, 1, 0.05f, 0}};
constexpr int kLaunches = 4;

__global__ void FillLogits(const __nv_bfloat16* from, size_t count, float scale, float* to) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = __bfloat162float(from[i]) * scale;
  }
}

template <class T>
TensorView View(const DeviceArray<T>& array, DType dtype, std::initializer_list<int64_t> shape) {
  return TensorView(array.get(), dtype, shape);
}

// Logits with this standard deviation: 1 as of random weights, where all tokens are likely; 4 as of
// trained ones.
void Time(CudaDevice& device, int64_t vocab, int64_t vectors, float deviation) {
  DeviceArray<__nv_bfloat16> random(kLaunches * vectors * vocab);
  Randomize(random, 3);
  const DeviceArray<float> logits(random.size());
  FillLogits<<<1056, 256>>>(random.get(), random.size(), deviation, logits.get());
  const std::vector<int32_t> slots(vectors);  // all of slot 0
  std::vector<int32_t> positions(vectors);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  const DeviceArray<int32_t> token_slot(slots), position(positions), tokens(vectors), ok(vectors),
      live(std::vector<int32_t>{static_cast<int32_t>(vectors)}), seed(std::vector<int32_t>{1, 2});
  for (const Request& r : kRequests) {
    const DeviceArray<float> temperature(std::vector<float>{r.temperature}),
        top_p(std::vector<float>{r.top_p}), min_p(std::vector<float>{r.min_p});
    const DeviceArray<int32_t> top_k(std::vector<int32_t>{r.top_k});
    SlotState state;
    state.temperature = View(temperature, DType::kF32, {1});
    state.top_p = View(top_p, DType::kF32, {1});
    state.min_p = View(min_p, DType::kF32, {1});
    state.top_k = View(top_k, DType::kI32, {1});
    state.seed = View(seed, DType::kI32, {1, 2});
    const double us = MedianMicroseconds(
        kLaunches, 21,
        [&](int i, cudaStream_t) {
          OpContext context = {device.stream(), {}};
          SampleCuda(context, {.logits = TensorView(logits.get() + i * vectors * vocab, DType::kF32,
                                                    {vectors, vocab}),
                               .index = View(position, DType::kI32, {vectors}),
                               .token_slot = View(token_slot, DType::kI32, {vectors}),
                               .positions = View(position, DType::kI32, {vectors}),
                               .slots = state,
                               .live = View(live, DType::kI32, {1}),
                               .tokens = View(tokens, DType::kI32, {vectors}),
                               .ok = View(ok, DType::kI32, {vectors})});
        },
        device.stream().get());
    std::printf("vocabulary %lld, deviation %g, %3lld vectors, %-16s us %.2f\n",
                static_cast<long long>(vocab), deviation, static_cast<long long>(vectors), r.name,
                us);
  }
}

int Main() {
  const auto device = CudaDevice::Open(0);
  if (!device.ok()) return std::fprintf(stderr, "%s\n", device.status().message().c_str()), 1;
  for (const int64_t vocab : {102400, 129280}) {
    for (const float deviation : {1.0f, 4.0f}) {
      for (const int64_t vectors : {1, 8, 128}) Time(**device, vocab, vectors, deviation);
    }
  }
  return 0;
}

}  // namespace
}  // namespace fathom::bench

int main() {
  return fathom::bench::Main();
}
