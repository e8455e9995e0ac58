// Threads for CPU ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace fathom {

// THREAD: one caller at a time.
class ThreadPool {
 public:
  // `threads` includes the caller; 0 means one per core that this process may run on.
  explicit ThreadPool(int threads);
  ~ThreadPool();

  int threads() const;

  // Calls body(begin, end, thread) on disjoint ranges that cover [0, n); ranges are multiples of
  // `grain` long (but for the last). Returns once all have run. Which thread runs what is not
  // fixed, so a result must not depend on it. `thread` is in [0, threads()).
  void ParallelFor(int64_t n, int64_t grain,
                   const std::function<void(int64_t begin, int64_t end, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fathom
