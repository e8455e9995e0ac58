// GPUs of one host as ranks that are threads: memory that all of them see, kernels that wait for
// peers, threads that begin together.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "bench/report.cuh"
#include "cuda/driver.h"

namespace fathom::bench {

constexpr int kMaxRanks = 8;
using Seconds = std::chrono::duration<double>;
using SteadyTime = std::chrono::steady_clock;

// Of each rank, mapped into all.
struct Exchange {
  uint32_t flags[kMaxRanks][32];  // of peers; a line each
};

// Of each rank alone.
struct Counters {
  uint32_t barrier;
};

struct Ranks {
  int count = 0, self = 0;
  Exchange* exchange[kMaxRanks] = {};
  Counters* counters = nullptr;
  volatile uint32_t* abort = nullptr;  // host memory
};

__device__ inline void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Spins until `there` says so, or the host gives up, which costs a read of its memory now and then.
template <class There>
__device__ inline void Await(const Ranks& ranks, const There& there) {
  for (uint32_t spins = 1; !there(); ++spins) {
    if (spins % 4096 == 0 && *ranks.abort != 0) return;
  }
}

static __global__ void Barrier(Ranks ranks) {
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

static __global__ void Empty() {}

static __global__ void Work(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// Memory of GPU `owner` at one address for all of `gpus`: only what is mapped so is shared.
inline void* MapForAll(int owner, int gpus, size_t bytes) {
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

inline cudaStream_t NewStream() {
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

}  // namespace fathom::bench
