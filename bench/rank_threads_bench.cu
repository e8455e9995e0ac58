// Whether the ranks of a host may be threads of one process: graphs and launches whose kernels spin
// on flags in peers' memory, from a thread for each GPU, one of which is late at random. And what
// waiting for each other costs, and moving bytes between GPUs by kernels.
//
//     rank_threads_bench spin [--launches N] [--ranks N]   ends with 1, and says where, if it hangs
//     rank_threads_bench enqueue     the host's time for a mixed step, of one rank and of all at
//     once rank_threads_bench times       barrier, all-reduce in packets of data and flag, reading
//     a peer
//
// Each takes --json FILE. Flags and packets carry an epoch, counted in device memory, so that a
// replayed graph needs no new arguments. The packets are those of NCCL's LL protocol (eight bytes
// of data in sixteen, each half with its flag); no multicast.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>

#include "bench/report.cuh"
#include "cuda/driver.h"

namespace fathom::bench {
namespace {

constexpr int kMaxRanks = 8;
constexpr size_t kMostBytes = 256 << 10;  // of a message
using Seconds = std::chrono::duration<double>;
using SteadyTime = std::chrono::steady_clock;

// Of each rank, mapped into all.
struct Exchange {
  uint32_t flags[kMaxRanks][32];                     // of peers; a line each
  uint4 packets[2][kMaxRanks][2 * kMostBytes / 16];  // by epoch's parity, of peers
};

// Of each rank alone.
struct Counters {
  uint32_t barrier, all_reduce, blocks_done;
};

struct Ranks {
  int count = 0, self = 0;
  Exchange* exchange[kMaxRanks] = {};
  Counters* counters = nullptr;
  volatile uint32_t* abort = nullptr;  // host memory
};

__device__ void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ void StorePacket(uint4* to, uint32_t a, uint32_t b, uint32_t flag) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(flag),
               "r"(b), "r"(flag)
               : "memory");
}
__device__ uint4 LoadPacket(const uint4* from) {
  uint4 p;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w)
               : "l"(from)
               : "memory");
  return p;
}

// Spins until `there` says so, or the host gives up, which costs a read of its memory now and then.
template <class There>
__device__ void Await(const Ranks& ranks, const There& there) {
  for (uint32_t spins = 1; !there(); ++spins) {
    if (spins % 4096 == 0 && *ranks.abort != 0) return;
  }
}

__global__ void Barrier(Ranks ranks) {
  const uint32_t epoch = ranks.counters->barrier + 1;
  __syncwarp();
  const int peer = threadIdx.x;
  if (peer < ranks.count) {
    StoreRelease(ranks.exchange[peer]->flags[ranks.self], epoch);
    const uint32_t* flag = ranks.exchange[ranks.self]->flags[peer];
    Await(ranks, [&] { return static_cast<int32_t>(LoadAcquire(flag) - epoch) >= 0; });
  }
  __syncwarp();
  if (threadIdx.x == 0) ranks.counters->barrier = epoch;
}

__global__ void Empty() {}

__global__ void Work(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// out = the sum over ranks of their `mine`, in fp32, in the order of ranks, rounded once.
__global__ void __launch_bounds__(256)
    AllReduce(Ranks ranks, const uint4* mine, uint4* out, int pieces) {
  const uint32_t epoch = ranks.counters->all_reduce + 1;
  const int parity = epoch & 1;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pieces) {
    const uint4 own = mine[i];
    for (int hop = 1; hop < ranks.count; ++hop) {
      const int peer = (ranks.self + hop) % ranks.count;
      uint4* to = ranks.exchange[peer]->packets[parity][ranks.self] + 2 * i;
      StorePacket(to, own.x, own.y, epoch);
      StorePacket(to + 1, own.z, own.w, epoch);
    }
    float2 sum[4] = {};
    for (int rank = 0; rank < ranks.count; ++rank) {
      uint32_t words[4] = {own.x, own.y, own.z, own.w};
      if (rank != ranks.self) {
        const uint4* from = ranks.exchange[ranks.self]->packets[parity][rank] + 2 * i;
        uint4 a, b;
        Await(ranks, [&] {
          a = LoadPacket(from), b = LoadPacket(from + 1);
          return a.y == epoch && a.w == epoch && b.y == epoch && b.w == epoch;
        });
        words[0] = a.x, words[1] = a.z, words[2] = b.x, words[3] = b.z;
      }
      for (int j = 0; j < 4; ++j) {
        const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(words[j]));
        sum[j].x += x.x, sum[j].y += x.y;
      }
    }
    uint4 result;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&result);
    for (int j = 0; j < 4; ++j) pairs[j] = __float22bfloat162_rn(sum[j]);
    out[i] = result;
  }
  __syncthreads();  // all have read the epoch
  if (threadIdx.x == 0 && atomicAdd(&ranks.counters->blocks_done, 1) == gridDim.x - 1) {
    ranks.counters->blocks_done = 0;
    ranks.counters->all_reduce = epoch;
  }
}

// Memory of GPU `owner` at one address for all of `gpus`: only what is mapped so is shared.
void* MapForAll(int owner, int gpus, size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = owner};
  size_t granularity = 0;
  CU_CHECK(Driver().MemGetAllocationGranularity(&granularity, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  const size_t size = (bytes + granularity - 1) / granularity * granularity;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  CU_CHECK(Driver().MemCreate(&handle, size, &properties, 0));
  CU_CHECK(Driver().MemAddressReserve(&at, size, 0, 0, 0));
  CU_CHECK(Driver().MemMap(at, size, 0, handle, 0));
  std::vector<CUmemAccessDesc> access(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    access[gpu].location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu};
    access[gpu].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  CU_CHECK(Driver().MemSetAccess(at, size, access.data(), access.size()));
  return reinterpret_cast<void*>(at);
}

// All ranks of a host, ready to run; nothing of it is freed before the process ends.
class Host {
 public:
  explicit Host(int count) {
    BENCH_CHECK(cudaHostAlloc(const_cast<uint32_t**>(&abort_), sizeof(uint32_t),
                              cudaHostAllocPortable | cudaHostAllocMapped));
    *abort_ = 0;
    for (int r = 0; r < count; ++r) {
      BENCH_CHECK(cudaSetDevice(r));
      auto* exchange = static_cast<Exchange*>(MapForAll(r, count, sizeof(Exchange)));
      BENCH_CHECK(cudaMemset(exchange, 0, sizeof(Exchange)));
      Ranks ranks{.count = count, .self = r, .abort = abort_};
      BENCH_CHECK(cudaMalloc(&ranks.counters, sizeof(Counters)));
      BENCH_CHECK(cudaMemset(ranks.counters, 0, sizeof(Counters)));
      BENCH_CHECK(cudaDeviceSynchronize());
      ranks_.push_back(ranks);
      for (Ranks& of : ranks_) of.exchange[r] = exchange;
      for (int q = 0; q < r; ++q) ranks_[r].exchange[q] = ranks_[q].exchange[q];
    }
  }

  int count() const { return static_cast<int>(ranks_.size()); }
  void Abort() { *abort_ = 1; }

  // Runs `body(rank)` on a thread for each, with its GPU, and waits.
  template <class Body>
  void RunAll(const Body& body) const {
    std::vector<std::thread> threads;
    for (int r = 0; r < count(); ++r) {
      threads.emplace_back([&, r] {
        BENCH_CHECK(cudaSetDevice(r));
        body(ranks_[r]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  volatile uint32_t* abort_ = nullptr;
  std::vector<Ranks> ranks_;
};

// Host threads wait for each other here, so that what comes next begins at once.
class Gate {
 public:
  explicit Gate(int count) : count_(count) {}
  void Wait() {
    const int64_t ticket = arrived_++;
    while (arrived_ < (ticket / count_ + 1) * count_) std::this_thread::yield();
  }

 private:
  const int64_t count_;
  std::atomic<int64_t> arrived_{0};
};

cudaStream_t NewStream() {
  cudaStream_t stream;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

template <class Enqueue>
cudaGraphExec_t Record(cudaStream_t stream, const Enqueue& enqueue) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  BENCH_CHECK(cudaStreamEndCapture(stream, &graph));
  BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  BENCH_CHECK(cudaGraphDestroy(graph));
  BENCH_CHECK(cudaGraphUpload(exec, stream));
  BENCH_CHECK(cudaStreamSynchronize(stream));
  return exec;
}

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

// Whether all ranks have the sum of what was there, after `rounds` of random sizes.
bool CheckSums(const Host& host, int rounds) {
  std::atomic<bool> right{true};
  Gate gate(host.count());
  host.RunAll([&](const Ranks& ranks) {
    const cudaStream_t stream = NewStream();
    const size_t values = kMostBytes / 2;
    std::vector<std::vector<__nv_bfloat16>> inputs(host.count());
    for (int r = 0; r < host.count(); ++r) {
      std::mt19937 random(r + 1);
      for (size_t i = 0; i < values; ++i) {
        inputs[r].push_back(__float2bfloat16(static_cast<float>(random()) * 0x1p-30f - 2));
      }
    }
    const DeviceArray<__nv_bfloat16> mine(inputs[ranks.self]), out(values);
    std::mt19937 sizes(77);  // the same on all ranks
    for (int round = 0; round < rounds; ++round) {
      const int pieces = static_cast<int>(1 + sizes() % (kMostBytes / 16));
      BENCH_CHECK(cudaMemsetAsync(out.get(), 0xff, kMostBytes, stream));
      AllReduce<<<(pieces + 255) / 256, 256, 0, stream>>>(
          ranks, reinterpret_cast<const uint4*>(mine.get()), reinterpret_cast<uint4*>(out.get()),
          pieces);
      if (round % 64 != 0) continue;
      BENCH_CHECK(cudaStreamSynchronize(stream));
      const std::vector<__nv_bfloat16> sums = out.ToHost();
      for (int i = 0; i < pieces * 8; ++i) {
        float sum = 0;
        for (const auto& input : inputs) sum += __bfloat162float(input[i]);
        if (__bfloat162float(sums[i]) != __bfloat162float(__float2bfloat16(sum))) right = false;
      }
    }
    BENCH_CHECK(cudaStreamSynchronize(stream));
    gate.Wait();
  });
  return right;
}

bool Times(int count, JsonObject& json) {
  const Host host(count);
  const auto add = [&](const std::string& name, double us) {
    std::printf("%-28s %.2f us\n", name.c_str(), us);
    json.Add("\"%s\": %.3f", name.c_str(), us);
  };
  const bool right = CheckSums(host, 4000);
  std::printf("sums of 4000 rounds: %s\n", right ? "right" : "WRONG");
  const double empty = TimeOfAll(
      host, 200, [](const Ranks&, cudaStream_t stream) { Empty<<<1, 32, 0, stream>>>(); });
  add("launch", empty);
  add("barrier", TimeOfAll(host, 200, [](const Ranks& ranks, cudaStream_t stream) {
        Barrier<<<1, 32, 0, stream>>>(ranks);
      }));
  for (const int kib : {8, 14, 32, 64, 128, 256}) {
    for (const int threads : {64, 128, 256}) {
      const int pieces = kib * 64;
      add("all_reduce_" + std::to_string(kib) + "k_" + std::to_string(threads),
          TimeOfAll(host, 100, [&](const Ranks& ranks, cudaStream_t stream) {
            static thread_local DeviceArray<uint4> mine(kMostBytes / 16), out(kMostBytes / 16);
            AllReduce<<<(pieces + threads - 1) / threads, threads, 0, stream>>>(ranks, mine.get(),
                                                                                out.get(), pieces);
          }));
    }
  }
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
  return right;
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
  if (args[0] == "times") good = Times(count, json);
  if (!file.empty()) json.Write(file);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  return fathom::bench::Main({argv + 1, argv + argc});
}
