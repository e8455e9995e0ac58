// A strided view of numbers that somebody else owns.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace fathom {

inline constexpr int kMaxRank = 4;

// Up to four dimensions, outermost first; strides in elements. A default view is absent.
class TensorView {
 public:
  TensorView() = default;
  // Contiguous.
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape);
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape,
             std::initializer_list<int64_t> strides);
  // Read-only memory (a mapped file); ops never write to inputs.
  static TensorView ReadOnly(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(const_cast<void*>(data), dtype, shape);
  }

  bool absent() const { return rank_ == 0; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t stride(int i) const { return strides_[i]; }
  int64_t elements() const;
  bool contiguous() const;
  // Whether the innermost dimension is contiguous (or has at most one element).
  bool innermost_contiguous() const {
    return rank_ > 0 && (strides_[rank_ - 1] == 1 || shape_[rank_ - 1] <= 1);
  }
  void* data() const { return data_; }

  // Pointer to the first element. REQUIRES: the dtype is that of T (or T is a byte type).
  template <class T>
  T* As() const {
    if constexpr (sizeof(T) > 1) {
      CHECK(dtype_ == DTypeOf<T>::value, "tensor is {}, not what was asked for", Name(dtype_));
    }
    return static_cast<T*>(data_);
  }
  // Pointer to slice i of dimension 0.
  template <class T>
  T* As(int64_t i) const {
    return As<T>() + i * strides_[0];
  }

  // Elements [begin, end) of dimension `dimension`.
  TensorView Slice(int dimension, int64_t begin, int64_t end) const;
  // Without dimension 0, at index i. REQUIRES: rank > 1.
  TensorView At(int64_t i) const;
  // Rank 2, the two dimensions exchanged.
  TensorView Transposed() const;
  // The same elements in another shape. REQUIRES: contiguous, equal count.
  TensorView Reshaped(std::initializer_list<int64_t> shape) const;

  std::string ToString() const;  // "BF16 [4, 256]"

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int8_t rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> strides_{};
};

// Any element as float; slow, for packing, checks and tests. REQUIRES: a floating-point view of
// rank 2, in range; for F8_E4M3 use quant/e4m3.h.
float LoadFloat(const TensorView& view, int64_t i, int64_t j);

}  // namespace fathom
