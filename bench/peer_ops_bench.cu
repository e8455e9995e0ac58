// Ops between the GPUs of a host, each rank a thread, in graphs that all replay at the same time:
// medians of the slowest rank. Beside a small sum its norm alone: what is between them is what
// other ranks cost.
//
//     peer_ops_bench [--ranks N] [--json FILE]
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>

#include "bench/report.cuh"
#include "cuda/device.h"
#include "ops/ops.h"
#include "parallel/on_ranks.h"
#include "parallel/peer.h"
#include "parallel/peer_barrier.h"

namespace fathom::bench {
namespace {

constexpr int kLaunches = 50, kReplays = 15;
constexpr int64_t kHidden = 7168, kVocab = 129280, kExperts = 256, kTopk = 8;

class Bench {
 public:
  explicit Bench(int ranks) {
    std::vector<CudaDevice*> all;
    for (int gpu = 0; gpu < ranks; ++gpu) {
      devices_.push_back(CudaDevice::Open(gpu).value());
      all.push_back(devices_.back().get());
    }
    auto group = PeerCommunicator::Group(all);
    if (!group.ok()) {
      std::fprintf(stderr, "%s\n", group.status().message().c_str());
      std::exit(1);
    }
    ranks_ = *std::move(group);
  }
  int count() const { return static_cast<int>(devices_.size()); }

  // Microseconds of what `make` returns: called once on each rank, it lays out memory.
  using Enqueue = std::function<void()>;
  using Make = std::function<Enqueue(CudaDevice&, PeerCommunicator&)>;
  double Time(const Make& make) {
    std::vector<double> medians(devices_.size());
    const Status status = OnRanks(count(), [&](int rank) -> Status {
      const auto at = static_cast<size_t>(rank);
      CudaDevice& device = *devices_[at];
      device.BindThread();
      const Enqueue enqueue = make(device, *ranks_[at]);
      device.stream().Synchronize();
      Arrive();
      enqueue();
      device.stream().Synchronize();
      Arrive();
      medians[at] = TimeReplays(device.stream().get(), enqueue);
      Arrive();
      return device.status();
    });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::exit(1);
    }
    return *std::ranges::max_element(medians);
  }

 private:
  double TimeReplays(cudaStream_t stream, const Enqueue& enqueue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kLaunches; ++i) enqueue();
    BENCH_CHECK(cudaStreamEndCapture(stream, &graph));
    BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    BENCH_CHECK(cudaGraphUpload(exec, stream));
    cudaEvent_t begin, end;
    BENCH_CHECK(cudaEventCreate(&begin));
    BENCH_CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < kReplays; ++i) {
      BENCH_CHECK(cudaStreamSynchronize(stream));
      Arrive();
      float ms = 0;
      BENCH_CHECK(cudaEventRecord(begin, stream));
      BENCH_CHECK(cudaGraphLaunch(exec, stream));
      BENCH_CHECK(cudaEventRecord(end, stream));
      BENCH_CHECK(cudaEventSynchronize(end));
      BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (i >= 3) times.push_back(ms);
    }
    std::ranges::sort(times);
    return 1e3 * times[times.size() / 2] / kLaunches;
  }
  // Spins until all ranks are here, so that what comes next begins at once.
  void Arrive() {
    const int64_t ticket = arrived_++;
    while (arrived_ < (ticket / count() + 1) * count()) std::this_thread::yield();
  }

  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<std::unique_ptr<PeerCommunicator>> ranks_;
  std::atomic<int64_t> arrived_{0};
};

// Tensors of one rank, which live as long as what holds this.
struct Tensors {
  CudaDevice& device;
  std::vector<std::unique_ptr<DeviceMemory>> memory;

  TensorView Make(DType type, std::initializer_list<int64_t> shape) {
    const int64_t elements = TensorView(nullptr, type, shape).elements();
    memory.push_back(device.Allocate(static_cast<size_t>(elements) * ByteSize(type)));
    return TensorView(memory.back()->data(), type, shape);
  }
  TensorView Make(DType type, std::initializer_list<int64_t> shape,
                  const std::vector<int32_t>& numbers) {
    const TensorView view = Make(type, shape);
    device.Upload(view, std::as_bytes(std::span(numbers)));
    device.stream().Synchronize();
    return view;
  }
  TensorView Live(int64_t count) { return Make(DType::kI32, {1}, {static_cast<int32_t>(count)}); }
};

template <class Args>
Bench::Enqueue Enqueued(const std::shared_ptr<Tensors>& t, const Op<Args>& op, const Args& args) {
  const size_t bytes = std::max<size_t>(op.Workspace(t->device.stream(), args), 64);
  const TensorView workspace = t->Make(DType::kU8, {static_cast<int64_t>(bytes)});
  return [t, &op, args, workspace, bytes] {
    OpContext context{t->device.stream(), {static_cast<std::byte*>(workspace.data()), bytes}};
    op(context, args);
  };
}

const Ops& OpsOf(const CudaDevice& device) {
  return CudaOps(device, Fp8Activations::kQuantized);
}

AllReduceNormArgs SumArgs(Tensors& t, PeerCommunicator& ranks, int64_t tokens) {
  return {.norm = {.x = t.Make(DType::kBF16, {tokens, kHidden}),
                   .residual = t.Make(DType::kF32, {tokens, kHidden}),
                   .weight = t.Make(DType::kF32, {kHidden}),
                   .eps = 1e-6f,
                   .live = t.Live(tokens),
                   .out = t.Make(DType::kBF16, {tokens, kHidden})},
          .ranks = &ranks};
}

void Sums(Bench& bench, Report& report) {
  for (const int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 73, 74, 128, 512, 1170, 4096}) {
    const double norm = bench.Time([&](CudaDevice& device, PeerCommunicator& ranks) {
      const auto t = std::make_shared<Tensors>(device);
      return Enqueued(t, OpsOf(device).rms_norm, SumArgs(*t, ranks, tokens).norm);
    });
    const double sum = bench.Time([&](CudaDevice& device, PeerCommunicator& ranks) {
      const auto t = std::make_shared<Tensors>(device);
      return Enqueued(t, OpsOf(device).all_reduce_norm, SumArgs(*t, ranks, tokens));
    });
    report.Add(
        Format("all_reduce_norm of %lld tokens", static_cast<long long>(tokens)),
        {{"kb", 2e-3 * tokens * kHidden}, {"us", sum}, {"norm_us", norm}, {"more_us", sum - norm}});
  }
}

void Gathers(Bench& bench, Report& report) {
  for (const int64_t tokens : {1, 8, 32, 128}) {
    const double us = bench.Time([&](CudaDevice& device, PeerCommunicator& ranks) {
      const auto t = std::make_shared<Tensors>(device);
      const int64_t unit = ShareUnit(kVocab, bench.count());
      const Share mine = ShareOf(kVocab, unit, bench.count(), ranks.rank());
      return Enqueued(t, OpsOf(device).all_gather,
                      {.x = t->Make(DType::kF32, {tokens, mine.size()}),
                       .live = t->Live(tokens),
                       .out = t->Make(DType::kF32, {tokens, kVocab}),
                       .unit = unit,
                       .ranks = &ranks});
    });
    report.Add(Format("all_gather of %lld tokens' logits", static_cast<long long>(tokens)),
               {{"kb", 4e-3 * tokens * kVocab}, {"us", us}});
  }
}

// What dispatch and combine take together, of tokens whose experts are drawn evenly.
void Exchanges(Bench& bench, Report& report) {
  for (const int64_t tokens : {1, 8, 32, 128, 512}) {
    const double us = bench.Time([&](CudaDevice& device, PeerCommunicator& ranks) {
      const auto t = std::make_shared<Tensors>(device);
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < tokens; ++i) {
        for (int64_t j = 0; j <= kTopk; ++j) {
          const int64_t expert = (31 * i + 32 * j + 7 * ranks.rank()) % kExperts;
          ids.push_back(static_cast<int32_t>(j < kTopk ? expert : kExperts));
        }
      }
      const int64_t each = kTopk + 1, pairs = tokens * (bench.count() * kTopk + 1);
      const ExpertExchange exchange = {.ranks = &ranks, .routed = kExperts, .each = tokens};
      const TensorView id_view = t->Make(DType::kI32, {tokens, each}, ids), live = t->Live(tokens);
      const TensorView pair_x = t->Make(DType::kBF16, {pairs, kHidden});
      const TensorView origin = t->Make(DType::kI32, {pairs}), pair_live = t->Live(0);
      const auto dispatch = Enqueued<DispatchArgs>(t, OpsOf(device).dispatch,
                                                   {.x = t->Make(DType::kBF16, {tokens, kHidden}),
                                                    .ids = id_view,
                                                    .live = live,
                                                    .exchange = exchange,
                                                    .pair_x = pair_x,
                                                    .pair_ids = t->Make(DType::kI32, {pairs, 1}),
                                                    .pair_origin = origin,
                                                    .pair_live = pair_live});
      const auto combine = Enqueued<CombineArgs>(t, OpsOf(device).combine,
                                                 {.pair_y = pair_x,
                                                  .pair_origin = origin,
                                                  .pair_live = pair_live,
                                                  .exchange = exchange,
                                                  .ids = id_view,
                                                  .weights = t->Make(DType::kF32, {tokens, each}),
                                                  .live = live,
                                                  .out = t->Make(DType::kBF16, {tokens, kHidden})});
      return Bench::Enqueue([dispatch, combine] { dispatch(), combine(); });
    });
    report.Add(Format("dispatch, combine of %lld tokens", static_cast<long long>(tokens)),
               {{"us", us}});
  }
}

int Main(std::vector<std::string> args) {
  const std::string file = TakeJsonFile(args);
  int gpus = 0;
  BENCH_CHECK(cudaGetDeviceCount(&gpus));
  const int ranks = args.size() == 2 && args[0] == "--ranks" ? std::stoi(args[1]) : gpus;
  if (ranks < 2 || ranks > gpus) {
    std::fprintf(stderr, "peer_ops_bench [--ranks N]: needs two GPUs, and N of them\n");
    return 2;
  }
  Bench bench(ranks);
  Report report;
  report.Add("barrier", {{"us", bench.Time([](CudaDevice& device, PeerCommunicator& rank) {
                            const cudaStream_t stream = device.stream().get();
                            const PeerView& view = rank.view();
                            return [view, stream] { LaunchPeerBarrier(view, 0, stream); };
                          })}});
  Sums(bench, report);
  Gathers(bench, report);
  Exchanges(bench, report);
  if (!file.empty()) report.Write(file.c_str(), "peer_ops");
  return 0;
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  return fathom::bench::Main({argv + 1, argv + argc});
}
