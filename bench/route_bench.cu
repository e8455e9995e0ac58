// Routing: the op of the CUDA table on V2-Lite's and V3's shapes. First that a token's bits are
// those of 4096 tokens whatever the tokens beside it, and of an fp32 gate of the same numbers; then
// medians of graph replays of a BF16 gate, with inputs rotated past the L2.
//
//     route_bench [TOKENS]...     of these numbers of tokens, and without the check
#include <cstring>
#include <memory>

#include "bench/gpu_bench.cuh"
#include "cuda/device.h"
#include "ops/cuda_ops.h"

namespace fathom::bench {
namespace {

constexpr int kReplays = 31, kWarmMilliseconds = 40;
const std::vector<int> kTokens = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 4096};
constexpr int kMostTokens = 4096;

struct Shape {
  const char* name;
  int64_t hidden, experts, topk;
  RouterScoring scoring;
  RouterSelection selection;
  int n_group, topk_group;
};
constexpr Shape kShapes[] = {
    {"V2-Lite", 2048, 64, 6, RouterScoring::kSoftmax, RouterSelection::kGreedy, 1, 1},
    {"V3", 7168, 256, 8, RouterScoring::kSigmoid, RouterSelection::kGroupTopTwoBiased, 8, 4}};

template <class T>
__global__ void FillUniform(T* to, size_t count, uint64_t seed, float size) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const float random = Mix((seed << 40) + i + 0x9e3779b97f4a7c15ull) * 0x1p-32f - 0.5f;
    to[i] = static_cast<T>(__float2bfloat16_rn(random * size));
  }
}

template <class T>
struct Gate {
  Gate(const Shape& s, uint64_t seed) : weights(s.experts * s.hidden), bias(s.experts) {
    FillUniform<<<1056, 256>>>(weights.get(), weights.size(), seed, 0.1f);
    FillUniform<<<1, 256>>>(bias.get(), bias.size(), seed + 1, 0.1f);
    BENCH_CHECK(cudaGetLastError());
  }
  static constexpr DType kType = sizeof(T) == 2 ? DType::kBF16 : DType::kF32;
  DeviceArray<T> weights;
  DeviceArray<float> bias;
};

// Tokens, and what becomes of them.
struct Tokens {
  Tokens(const Shape& s, int64_t tokens)
      : s(s), x(tokens * s.hidden), weights(tokens * s.topk), ids(tokens * s.topk) {
    Randomize(x, 1);
    BENCH_CHECK(cudaMemset(ids.get(), 0xab, ids.size() * 4));
    BENCH_CHECK(cudaMemset(weights.get(), 0xab, weights.size() * 4));
  }
  // Of the first `count`.
  template <class T>
  RouteArgs Args(int64_t count, const int32_t* live, const Gate<T>& gate) const {
    const bool biased = s.selection == RouterSelection::kGroupTopTwoBiased;
    RouteArgs args;
    args.x = TensorView(x.get(), DType::kBF16, {count, s.hidden});
    args.gate = TensorView(gate.weights.get(), gate.kType, {s.experts, s.hidden});
    if (biased) args.bias = TensorView(gate.bias.get(), DType::kF32, {s.experts});
    args.scoring = s.scoring;
    args.selection = s.selection;
    args.n_group = s.n_group;
    args.topk_group = s.topk_group;
    args.norm_topk_prob = biased;
    args.live = TensorView(const_cast<int32_t*>(live), DType::kI32, {1});
    args.ids = TensorView(ids.get(), DType::kI32, {count, s.topk});
    args.weights = TensorView(weights.get(), DType::kF32, {count, s.topk});
    return args;
  }
  const Shape& s;
  DeviceArray<__nv_bfloat16> x;
  DeviceArray<float> weights;
  DeviceArray<int32_t> ids;
};

class Router {
 public:
  explicit Router(CudaDevice& device)
      : device_(device), workspace_(size_t{kMostTokens + 3} * 256 * 4 * 4) {}
  void Run(const RouteArgs& args) {
    OpContext context = {device_.stream(),
                         {reinterpret_cast<std::byte*>(workspace_.get()), workspace_.size()}};
    RouteCuda(context, args);
  }
  template <class F>
  double Median(int launches, const F& args) {
    const cudaStream_t stream = device_.stream().get();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) Run(args(i));
    BENCH_CHECK(cudaStreamEndCapture(stream, &graph));
    BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    BENCH_CHECK(cudaEventCreate(&begin));
    BENCH_CHECK(cudaEventCreate(&end));
    std::vector<float> times(kReplays);
    float warm = 0;  // clocks take some time
    for (int i = -1; i < kReplays; i += i >= 0 || warm > kWarmMilliseconds) {
      float milliseconds;
      BENCH_CHECK(cudaEventRecord(begin, stream));
      BENCH_CHECK(cudaGraphLaunch(exec, stream));
      BENCH_CHECK(cudaEventRecord(end, stream));
      BENCH_CHECK(cudaEventSynchronize(end));
      BENCH_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
      i >= 0 ? times[static_cast<size_t>(i)] = milliseconds : warm += milliseconds;
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    BENCH_CHECK(cudaEventDestroy(begin));
    BENCH_CHECK(cudaEventDestroy(end));
    BENCH_CHECK(cudaGraphExecDestroy(exec));
    BENCH_CHECK(cudaGraphDestroy(graph));
    return 1e3 * times[kReplays / 2] / launches;
  }

 private:
  CudaDevice& device_;
  DeviceArray<uint8_t> workspace_;
};

template <class T>
bool SamePrefix(const std::vector<T>& a, const std::vector<T>& b, size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(T)) == 0;
}

// Of each number of tokens, once with capacity to spare.
template <class T>
int Check(Router& router, const Shape& s) {
  const Gate<__nv_bfloat16> most_gate(s, 2);
  const Gate<T> gate(s, 2);
  const Tokens all(s, kMostTokens);
  const DeviceArray<int32_t> most(std::vector<int32_t>{kMostTokens});
  router.Run(all.Args(kMostTokens, most.get(), most_gate));
  BENCH_CHECK(cudaDeviceSynchronize());
  const std::vector<int32_t> ids = all.ids.ToHost();
  const std::vector<float> weights = all.weights.ToHost();
  int failures = 0;
  for (const int32_t id : ids) failures += id < 0 || id >= s.experts;
  for (const int tokens : kTokens) {
    for (const int spare : {0, 3}) {
      const Tokens some(s, tokens + spare);  // the same tokens
      const DeviceArray<int32_t> live(std::vector<int32_t>{tokens});
      for (int i = 0; i < 3; ++i) router.Run(some.Args(tokens + spare, live.get(), gate));
      BENCH_CHECK(cudaDeviceSynchronize());
      const std::vector<int32_t> some_ids = some.ids.ToHost();
      const auto written = static_cast<size_t>(tokens * s.topk);
      bool right =
          SamePrefix(some_ids, ids, written) && SamePrefix(some.weights.ToHost(), weights, written);
      for (size_t i = written; i < some_ids.size(); ++i) {
        right &= static_cast<uint32_t>(some_ids[i]) == 0xabababab;
      }
      if (!right)
        std::printf("FAILED %s: %d of %d tokens\n", s.name, tokens, tokens + spare), ++failures;
    }
  }
  std::printf("%s: %d failures\n", s.name, failures);
  return failures;
}

void Time(Router& router, const Shape& s, const std::vector<int>& counts) {
  using BF16Gate = Gate<__nv_bfloat16>;
  std::vector<std::unique_ptr<BF16Gate>> gates;
  const auto bytes = int64_t{2} * s.experts * s.hidden;
  const int sets = static_cast<int>(int64_t{150000000} / bytes) + 1;
  for (int i = 0; i < sets; ++i) gates.push_back(std::make_unique<BF16Gate>(s, 2 * i));
  for (const int tokens : counts) {
    const Tokens some(s, tokens);
    const DeviceArray<int32_t> live(std::vector<int32_t>{tokens});
    BENCH_CHECK(cudaDeviceSynchronize());
    const double us = router.Median(
        sets, [&](int i) { return some.Args(tokens, live.get(), *gates[static_cast<size_t>(i)]); });
    std::printf("%-8s %5d tokens %9.2f us %7.1f GFLOP/s\n", s.name, tokens, us,
                2e-3 * tokens * static_cast<double>(s.experts * s.hidden) / us);
  }
}

int Main(const std::vector<int>& tokens) {
  const auto device = CudaDevice::Open(0);
  if (!device.ok()) return std::fprintf(stderr, "%s\n", device.status().message().c_str()), 1;
  Router router(**device);
  int failures = 0;
  if (tokens.empty()) {
    for (const Shape& s : kShapes) {
      failures += Check<__nv_bfloat16>(router, s) + Check<float>(router, s);
    }
  }
  for (const Shape& s : kShapes) Time(router, s, tokens.empty() ? kTokens : tokens);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  std::vector<int> tokens;
  for (int i = 1; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  return fathom::bench::Main(tokens);
}
