// Device memory on CUDA virtual memory: one range of addresses, backed with memory as it fills.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tensor/device.h"

namespace fathom {

// Pieces lie one after another, and only the last one's memory is used again when it is freed: a
// device is laid out once at start-up. THREAD: one at a time.
class CudaArena {
 public:
  // Reserves addresses (no memory) on CUDA device `gpu`.
  CudaArena(int gpu, size_t reserved_bytes);
  ~CudaArena();
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;

  // Aligned to 1024 bytes, as TMA and cuBLASLt like it. Not zeroed. OutOfMemory() when the
  // device has no more.
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes);
  void Seal() { sealed_ = true; }  // Allocate() is a bug from here on
  size_t used() const { return used_; }

 private:
  class Piece;
  struct Mapping {
    size_t offset, size;
    unsigned long long handle;
  };

  void Grow(size_t end);

  int gpu_;
  size_t reserved_, granularity_ = 0;
  unsigned long long base_ = 0;
  size_t mapped_ = 0, used_ = 0;
  bool sealed_ = false;
  std::vector<Mapping> mappings_;
};

}  // namespace fathom
