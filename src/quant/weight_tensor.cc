#include "quant/weight_tensor.h"

#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

// Elements [begin, end) of `dimension` of the values, with the scales of the groups that cover
// them.
WeightTensor Slice(const WeightTensor& w, int dimension, int64_t begin, int64_t end) {
  CHECK(w.values.rank() == 2, "slice of {}", w.values.ToString());
  WeightTensor slice = w;
  slice.values = w.values.Slice(dimension, begin, end);
  if (w.scales.absent()) return slice;
  Groups& groups = dimension == 0 ? slice.format.scales.rows : slice.format.scales.cols;
  const int64_t first = groups.Of(begin);
  slice.scales = w.scales.Slice(dimension, first, begin == end ? first : groups.Of(end - 1) + 1);
  groups.offset = (groups.offset + begin) % groups.size;
  return slice;
}

}  // namespace

WeightTensor StoredWeight(const TensorView& values, const TensorView& scales) {
  return {.values = values, .scales = scales, .format = FormatOf(values.dtype())};
}

float Dequantize(const WeightTensor& w, int64_t row, int64_t col) {
  CHECK(w.values.rank() == 2 && row >= 0 && row < w.values.dim(0) && col >= 0 &&
            col < w.values.dim(1),
        "({}, {}) of {}", row, col, w.values.ToString());
  if (w.format.values != WeightType::kE4M3) return LoadFloat(w.values, row, col);
  CHECK(!w.scales.absent(), "FP8 weight without scales");
  const int64_t at = row * w.values.stride(0) + col * w.values.stride(1);
  const ScaleGroups& groups = w.format.scales;
  return ToFloat(w.values.As<E4M3>()[at]) *
         LoadFloat(w.scales, groups.rows.Of(row), groups.cols.Of(col));
}

WeightTensor SliceRows(const WeightTensor& w, int64_t begin, int64_t end) {
  return Slice(w, 0, begin, end);
}

WeightTensor SliceCols(const WeightTensor& w, int64_t begin, int64_t end) {
  return Slice(w, 1, begin, end);
}

WeightTensor Transposed(const WeightTensor& w) {
  WeightTensor transposed = w;
  transposed.values = w.values.Transposed();
  if (!w.scales.absent()) transposed.scales = w.scales.Transposed();
  std::swap(transposed.format.scales.rows, transposed.format.scales.cols);
  return transposed;
}

}  // namespace fathom
