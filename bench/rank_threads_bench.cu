// Whether the ranks of a host may be threads of one process: graphs and launches whose kernels spin
// on flags in peers' memory, from a thread for each GPU, one of which is late at random. And what
// waiting for each other costs, and moving bytes between GPUs by kernels.
//
//     rank_threads_bench spin [--launches N]   ends with 1, and says where, if it hangs
//     rank_threads_bench enqueue   the host's time for a mixed step, of one rank and of all at once
//     rank_threads_bench times     a launch, a barrier, reading a peer
//
// --ranks N: not of all GPUs.
//
// Each takes --json FILE. Flags carry an epoch, counted in device memory, so that a replayed graph
// needs no new arguments. No multicast.
#include <random>

#include "bench/peer_ranks.cuh"

namespace fathom::bench {
namespace {

// What a rank does in Spin: mostly replays, each sixteenth step eagerly, with copies and events
// between them as an executor has them; never waits but for full queues.
void SpinRank(const Ranks& ranks, Gate& gate, int64_t launches, std::atomic<int64_t>& done) {
  const cudaStream_t stream = NewStream();
  const auto step = [&] {
    for (int i = 0; i < 2; ++i) {
      Work<<<4, 128, 0, stream>>>(500);
      Barrier<<<1, 32, 0, stream>>>(ranks);
    }
  };
  step();  // loads the modules
  BENCH_CHECK(cudaStreamSynchronize(stream));
  gate.Wait();
  const cudaGraphExec_t graph = Record(stream, step);
  uint32_t *pinned, *on_device;
  BENCH_CHECK(cudaMallocHost(&pinned, 4096));
  BENCH_CHECK(cudaMalloc(&on_device, 4096));
  cudaEvent_t event;
  BENCH_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  BENCH_CHECK(cudaDeviceSynchronize());
  gate.Wait();
  std::mt19937_64 random(ranks.self);
  for (int64_t i = 0; i < launches; ++i) {
    if (ranks.self == ranks.count - 1 && random() % 8192 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));
    }
    BENCH_CHECK(cudaMemcpyAsync(on_device, pinned, 1024, cudaMemcpyHostToDevice, stream));
    if (i % 16 == 0) {
      step();
      BENCH_CHECK(cudaGetLastError());
    } else {
      BENCH_CHECK(cudaGraphLaunch(graph, stream));
    }
    BENCH_CHECK(cudaMemcpyAsync(pinned + 512, on_device, 1024, cudaMemcpyDeviceToHost, stream));
    BENCH_CHECK(cudaEventRecord(event, stream));
    const cudaError_t passed = cudaEventQuery(event);
    if (passed != cudaErrorNotReady) BENCH_CHECK(passed);
    done = i + 1;
  }
  BENCH_CHECK(cudaStreamSynchronize(stream));
  done = launches + 1;
}

bool Spin(int count, int64_t launches, JsonObject& json) {
  Host host(count);
  Gate gate(count);
  std::vector<std::atomic<int64_t>> done(count);
  std::atomic<bool> ended{false};
  bool hung = false;
  std::thread watchdog([&] {
    std::vector<int64_t> seen(count, -1);
    auto news = SteadyTime::now();
    while (!ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (int r = 0; r < count; ++r) {
        if (seen[r] != done[r]) seen[r] = done[r], news = SteadyTime::now();
      }
      if (SteadyTime::now() - news < std::chrono::seconds(20)) continue;
      hung = true;
      for (int r = 0; r < count; ++r) {
        std::printf("hangs: rank %d after %lld launches\n", r, static_cast<long long>(seen[r]));
      }
      host.Abort();
      news = SteadyTime::now();
    }
  });
  const auto begin = SteadyTime::now();
  host.RunAll([&](const Ranks& ranks) { SpinRank(ranks, gate, launches, done[ranks.self]); });
  const double seconds = Seconds(SteadyTime::now() - begin).count();
  ended = true;
  watchdog.join();
  std::printf("spin: %d ranks, %lld launches each, %.1f s: %s\n", count,
              static_cast<long long>(launches), seconds, hung ? "HUNG" : "no hang");
  json.Add("\"spin_%d\": {\"ranks\": %d, \"launches\": %lld, \"seconds\": %.1f, \"hung\": %s}",
           count, count, static_cast<long long>(launches), seconds, hung ? "true" : "false");
  return !hung;
}

// The host's time to enqueue a mixed step (300 launches, a replay of 300 more, copies), the median;
// of each rank while the others do the same.
std::vector<double> EnqueueTimes(const Host& host) {
  std::vector<double> medians(host.count());
  Gate gate(host.count());
  host.RunAll([&](const Ranks& ranks) {
    const cudaStream_t stream = NewStream();
    const auto kernels = [&] {
      for (int i = 0; i < 300; ++i) Empty<<<1, 32, 0, stream>>>();
    };
    kernels();
    const cudaGraphExec_t graph = Record(stream, kernels);
    uint32_t *pinned, *on_device;
    BENCH_CHECK(cudaMallocHost(&pinned, 4096));
    BENCH_CHECK(cudaMalloc(&on_device, 4096));
    std::vector<double> times;
    for (int i = 0; i < 300; ++i) {
      BENCH_CHECK(cudaStreamSynchronize(stream));
      gate.Wait();
      const auto begin = SteadyTime::now();
      BENCH_CHECK(cudaMemcpyAsync(on_device, pinned, 1024, cudaMemcpyHostToDevice, stream));
      kernels();
      BENCH_CHECK(cudaGraphLaunch(graph, stream));
      BENCH_CHECK(cudaMemcpyAsync(pinned, on_device, 1024, cudaMemcpyDeviceToHost, stream));
      times.push_back(1e6 * Seconds(SteadyTime::now() - begin).count());
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    medians[ranks.self] = times[times.size() / 2];
  });
  return medians;
}

void Enqueue(int count, JsonObject& json) {
  const double alone = EnqueueTimes(Host(1))[0];
  const std::vector<double> together = EnqueueTimes(Host(count));
  const double worst = *std::max_element(together.begin(), together.end());
  std::printf("enqueue: %.0f us of one rank, %.0f of %d at once: %.2f times\n", alone, worst, count,
              worst / alone);
  json.Add("\"enqueue\": {\"ranks\": %d, \"alone_us\": %.1f, \"together_us\": %.1f}", count, alone,
           worst);
}

// Microseconds of one of `launches` in a graph that all ranks replay together: the median, of the
// slowest rank.
template <class Launch>
double TimeOfAll(const Host& host, int launches, const Launch& launch) {
  std::vector<double> medians(host.count());
  Gate gate(host.count());
  host.RunAll([&](const Ranks& ranks) {
    const cudaStream_t stream = NewStream();
    launch(ranks, stream);
    BENCH_CHECK(cudaStreamSynchronize(stream));
    gate.Wait();
    const cudaGraphExec_t graph = Record(stream, [&] {
      for (int i = 0; i < launches; ++i) launch(ranks, stream);
    });
    cudaEvent_t begin, end;
    BENCH_CHECK(cudaEventCreate(&begin));
    BENCH_CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 20; ++i) {
      gate.Wait();
      float ms = 0;
      BENCH_CHECK(cudaEventRecord(begin, stream));
      BENCH_CHECK(cudaGraphLaunch(graph, stream));
      BENCH_CHECK(cudaEventRecord(end, stream));
      BENCH_CHECK(cudaEventSynchronize(end));
      BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (i >= 3) times.push_back(ms);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    medians[ranks.self] = 1e3 * times[times.size() / 2] / launches;
  });
  return *std::max_element(medians.begin(), medians.end());
}

void Times(int count, JsonObject& json) {
  const Host host(count);
  const auto add = [&](const std::string& name, double us) {
    std::printf("%-28s %.2f us\n", name.c_str(), us);
    json.Add("\"%s\": %.3f", name.c_str(), us);
  };
  const double empty = TimeOfAll(
      host, 200, [](const Ranks&, cudaStream_t stream) { Empty<<<1, 32, 0, stream>>>(); });
  add("launch", empty);
  add("barrier", TimeOfAll(host, 200, [](const Ranks& ranks, cudaStream_t stream) {
        Barrier<<<1, 32, 0, stream>>>(ranks);
      }));
  std::vector<void*> far;
  const size_t bytes = size_t{256} << 20;
  for (int r = 0; r < count; ++r) {
    BENCH_CHECK(cudaSetDevice(r));
    far.push_back(MapForAll(r, count, bytes));
  }
  for (const int blocks : {32, 132, 528}) {
    const double us = TimeOfAll(host, 4, [&](const Ranks& ranks, cudaStream_t stream) {
      const auto* from = static_cast<const uint4*>(far[(ranks.self + 1) % count]);
      ReadAll<<<blocks, 512, 0, stream>>>(from, bytes / 16, static_cast<uint4*>(far[ranks.self]));
    });
    std::printf("reading a peer, all at once, %d blocks: %.0f GB/s\n", blocks, 1e-3 * bytes / us);
    json.Add("\"read_peer_%d_blocks_gb_s\": %.1f", blocks, 1e-3 * bytes / us);
  }
}

int Main(std::vector<std::string> args) {
  const std::string file = TakeJsonFile(args);
  const auto number = [&](const char* flag, int64_t value) {
    for (size_t i = 0; i + 1 < args.size(); ++i) {
      if (args[i] == flag) value = std::stoll(args[i + 1]);
    }
    return value;
  };
  int gpus = 0;
  BENCH_CHECK(cudaGetDeviceCount(&gpus));
  const int count = static_cast<int>(number("--ranks", gpus));
  if (args.empty() || count > gpus || count > kMaxRanks) {
    std::fprintf(stderr, "rank_threads_bench spin|enqueue|times, for at most %d ranks\n",
                 std::min(gpus, kMaxRanks));
    return 2;
  }
  JsonObject json;
  bool good = true;
  if (args[0] == "spin") good = Spin(count, number("--launches", 1'000'000), json);
  if (args[0] == "enqueue") Enqueue(count, json);
  if (args[0] == "times") Times(count, json);
  if (!file.empty()) json.Write(file);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  return fathom::bench::Main({argv + 1, argv + argc});
}
