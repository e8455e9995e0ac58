// Memory that is owned: buffers, and an arena that is laid out once.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>

#include "tensor/tensor_view.h"

namespace fathom {

// Host memory, zeroed, aligned to 64 bytes (pages of 2 MiB are asked for when it is large).
// Made at start-up only: where the system has no such memory, the process says so and ends.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);

  // Has the system give the memory now, not when it is first written. THREAD: any.
  void Commit();

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    size_t size;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_{nullptr, Free{0}};
  size_t size_ = 0;
};

// Hands out aligned pieces of one run of memory; nothing is freed before the whole.
// A measuring arena (no memory) answers how large that must be for the same sequence of calls.
class Arena {
 public:
  static Arena Measuring() { return Arena(nullptr, SIZE_MAX); }
  Arena(std::byte* data, size_t size) : data_(data), size_(size) {}

  // A contiguous tensor. REQUIRES: room for it.
  TensorView Allocate(DType dtype, std::initializer_list<int64_t> shape);
  // `count` values of a type that tensors do not have, or that a kernel's parameters name.
  template <class T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* TakeBytes(size_t bytes);

  std::byte* data_;
  size_t size_;
  size_t used_ = 0;
};

}  // namespace fathom
