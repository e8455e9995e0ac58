// A stream that runs each op at once, on the calling thread and its pool.
#pragma once

#include <memory>
#include <utility>

#include "cpu/thread_pool.h"
#include "tensor/stream.h"

namespace fathom {

class CpuStream final : public Stream {
 public:
  explicit CpuStream(int threads, std::shared_ptr<SharedCores> cores = nullptr)
      : pool_(threads, std::move(cores)) {}
  void Synchronize() override {}
  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.threads(); }

 private:
  ThreadPool pool_;
};

}  // namespace fathom
