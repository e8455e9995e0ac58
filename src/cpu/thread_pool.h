// Threads for CPU ops.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace fathom {

// Cores that several pools share. A caller works in any case, and is helped while cores are free.
class SharedCores {
 public:
  explicit SharedCores(int cores) : free_(cores) {}
  // One for the caller, and of `wanted` for helpers as many as are free: their number.
  int64_t Take(int64_t wanted);
  void GiveBack(int64_t helpers) { free_ += helpers + 1; }  // with the caller's
  int64_t free() const { return free_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> free_;  // below 0 where there are more callers than cores
};

// THREAD: one caller at a time.
class ThreadPool {
 public:
  // `threads` includes the caller; 0 means UsableCpus() (cpu/cpu_count.h). Who waits looks on for a
  // while before it sleeps, but sleeps at once where `cores` are shared and none is free. Null: the
  // pool's own.
  explicit ThreadPool(int threads, std::shared_ptr<SharedCores> cores = nullptr);
  ~ThreadPool();

  int threads() const;

  // Calls body(int64_t begin, int64_t end, int thread) on disjoint ranges that cover [0, n); ranges
  // are multiples of `grain` long (but for the last). Returns once all have run; allocates nothing.
  // Which thread runs what is not fixed, so a result must not depend on it. `thread` is in
  // [0, threads()). REQUIRES: not called from within a body.
  template <class Body>
  void ParallelFor(int64_t n, int64_t grain, const Body& body) {
    Run(n, grain, &body, [](const void* b, int64_t begin, int64_t end, int thread) {
      (*static_cast<const Body*>(b))(begin, end, thread);
    });
  }

 private:
  using RangeFunction = void (*)(const void* body, int64_t begin, int64_t end, int thread);
  void Run(int64_t n, int64_t grain, const void* body, RangeFunction call);

  struct State;
  std::unique_ptr<State> state_;
};

// The grain for items of `cost` plain operations (or bytes): waking a thread costs some
// microseconds.
inline int64_t Grain(int64_t cost) {
  constexpr int64_t kWorthwhile = 16 << 10;
  return cost >= kWorthwhile ? 1 : kWorthwhile / (cost > 0 ? cost : 1);
}

}  // namespace fathom
