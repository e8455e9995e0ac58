#include "tensor/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace fathom {

TensorView::TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape)
    : data_(data), dtype_(dtype), rank_(static_cast<int8_t>(shape.size())) {
  CHECK(shape.size() >= 1 && shape.size() <= kMaxRank, "rank {}", shape.size());
  std::copy(shape.begin(), shape.end(), shape_.begin());
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    CHECK(shape_[i] >= 0, "negative dimension {}", shape_[i]);
    strides_[i] = stride;
    stride *= shape_[i];
  }
}

TensorView::TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape,
                       std::initializer_list<int64_t> strides)
    : TensorView(data, dtype, shape) {
  CHECK(strides.size() == shape.size());
  std::copy(strides.begin(), strides.end(), strides_.begin());
}

int64_t TensorView::elements() const {
  if (rank_ == 0) return 0;
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= shape_[i];
  return n;
}

bool TensorView::contiguous() const {
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (shape_[i] > 1 && strides_[i] != stride) return false;
    stride *= shape_[i];
  }
  return rank_ > 0;
}

TensorView TensorView::Slice(int dimension, int64_t begin, int64_t end) const {
  CHECK(
      dimension >= 0 && dimension < rank_ && 0 <= begin && begin <= end && end <= shape_[dimension],
      "slice [{}, {}) of dimension {} of {}", begin, end, dimension, ToString());
  TensorView slice = *this;
  slice.shape_[dimension] = end - begin;
  if (data_ != nullptr) {
    slice.data_ = static_cast<std::byte*>(data_) +
                  begin * strides_[dimension] * static_cast<int64_t>(ByteSize(dtype_));
  }
  return slice;
}

TensorView TensorView::At(int64_t i) const {
  CHECK(rank_ > 1);
  TensorView inner = Slice(0, i, i + 1);
  std::copy(shape_.begin() + 1, shape_.begin() + rank_, inner.shape_.begin());
  std::copy(strides_.begin() + 1, strides_.begin() + rank_, inner.strides_.begin());
  --inner.rank_;
  return inner;
}

TensorView TensorView::Transposed() const {
  CHECK(rank_ == 2, "transposing {}", ToString());
  TensorView result = *this;
  std::swap(result.shape_[0], result.shape_[1]);
  std::swap(result.strides_[0], result.strides_[1]);
  return result;
}

TensorView TensorView::Reshaped(std::initializer_list<int64_t> shape) const {
  TensorView result(data_, dtype_, shape);
  CHECK(contiguous() && result.elements() == elements(), "{} reshaped to {}", ToString(),
        result.ToString());
  return result;
}

std::string TensorView::ToString() const {
  if (absent()) return "absent";
  return fmt::format("{} [{}]", Name(dtype_),
                     fmt::join(std::span(shape_.data(), static_cast<size_t>(rank_)), ", "));
}

float LoadFloat(const TensorView& view, int64_t i, int64_t j) {
  const int64_t at = i * view.stride(0) + j * view.stride(1);
  switch (view.dtype()) {
    case DType::kF32: return view.As<float>()[at];
    case DType::kF16: return ToFloat(view.As<F16>()[at]);
    case DType::kBF16: return ToFloat(view.As<BF16>()[at]);
    default: CHECK(false, "{} is not a float to load", view.ToString());
  }
}

}  // namespace fathom
