// Cutting a launch's work space into arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom {

// Arrays one after the other, aligned for TMA. Without memory they are only counted, so that the
// code that lays them out also says how much they need.
class Pieces {
 public:
  explicit Pieces(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* Take(int64_t count) {
    std::byte* const at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

}  // namespace fathom
