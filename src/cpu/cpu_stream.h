// A stream that runs each op at once, on the calling thread and its pool.
#pragma once

#include "cpu/thread_pool.h"
#include "tensor/stream.h"

namespace fathom {

class CpuStream final : public Stream {
 public:
  explicit CpuStream(int threads) : pool_(threads) {}
  void Synchronize() override {}
  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.threads(); }

 private:
  ThreadPool pool_;
};

}  // namespace fathom
