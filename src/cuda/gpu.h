// A GPU as those see it who launch kernels: its properties, what CUDA keeps of each kernel for each
// GPU, and whether it failed.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/first_failure.h"
#include "base/status.h"

namespace fathom {

// Keeps which kernels were seen, without memory of its own or locks: a few stores for each launch.
class KernelSet {
 public:
  // False if it was there already.
  bool Insert(const void* kernel) {
    for (size_t at = reinterpret_cast<uintptr_t>(kernel) / 16 % kPlaces;; at = (at + 1) % kPlaces) {
      if (kernels_[at] == kernel) return false;
      if (kernels_[at] != nullptr) continue;
      CHECK(++count_ < kPlaces, "more kernels than KernelSet holds");
      kernels_[at] = kernel;
      return true;
    }
  }

 private:
  static constexpr size_t kPlaces = 512;  // several times as many as there are kernels that ask
  std::array<const void*, kPlaces> kernels_{};
  size_t count_ = 0;
};

// Belongs to a CudaDevice; nothing of it is the process's, so that a thread for each may drive
// several. A launcher gets a stream alone, and asks for the GPU that its thread drives, as CUDA
// does. THREAD: one at a time.
class Gpu {
 public:
  // CUDA device `ordinal`, which this thread drives from here on. REQUIRES: it is there.
  explicit Gpu(int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // The one that this thread drives: that of its last BindThread(). REQUIRES: it lives.
  static Gpu& OfThread();
  void BindThread();

  int ordinal() const { return ordinal_; }
  int multiprocessors() const { return multiprocessors_; }
  // Hopper (compute capability 9.0), which the fast kernels are made for.
  bool is_hopper() const { return major_ == 9 && minor_ == 0; }
  // Whether a kernel's blocks may start while the one before it ends (programmatic dependent
  // launch).
  bool overlaps_kernels() const { return major_ >= 9; }

  // A word on the GPU by which blocks of a kernel are handed out work: 0 between kernels. Those of
  // one stream alone.
  uint32_t* work_counter() const { return work_counter_; }

  // Whether a call went well. A fault of the device is kept in status(), with the op, its shape and
  // the step (base/activity.h); an error that can only be a bug stops the process.
  bool Check(cudaError_t error) {
    if (error != cudaSuccess) Fail(error);
    return error == cudaSuccess;
  }
  void Fail(cudaError_t error);
  void Fail(cudaError_t error, const std::string& text);
  // The first failure: nothing of what was asked since can be relied on, and nothing more should be
  // asked. THREAD: any, as Fail().
  Status status() const { return failure_.status(); }
  bool failed() const { return failure_.failed(); }

  // Before every launch of a kernel with more than 48 KiB of dynamic shared memory: `bytes` at
  // most, the same each time. Asks CUDA once.
  template <class... Parameters>
  void AllowSharedMemory(void (*kernel)(Parameters...), size_t bytes) {
    const auto* address = reinterpret_cast<const void*>(kernel);
    if (kernels_.Insert(address)) SetSharedMemory(address, bytes);
  }

 private:
  void SetSharedMemory(const void* kernel, size_t bytes);

  int ordinal_, multiprocessors_ = 0, major_ = 0, minor_ = 0;
  uint32_t* work_counter_ = nullptr;
  KernelSet kernels_;  // that may take their shared memory
  FirstFailure failure_;
};

}  // namespace fathom
