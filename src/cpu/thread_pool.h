// Threads for CPU ops.
#pragma once

#include <cstdint>
#include <memory>

namespace fathom {

// THREAD: one caller at a time.
class ThreadPool {
 public:
  // `threads` includes the caller; 0 means UsableCpus() (cpu/cpu_count.h).
  explicit ThreadPool(int threads);
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
