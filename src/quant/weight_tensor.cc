#include "quant/weight_tensor.h"

#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

// Elements [begin, end) of `dimension` of the values, with the scale tiles that cover them.
WeightTensor Slice(const WeightTensor& w, int dimension, int64_t begin, int64_t end,
                   int32_t WeightTensor::*offset) {
  CHECK(w.values.rank() == 2, "slice of {}", w.values.ToString());
  WeightTensor slice = w;
  slice.values = w.values.Slice(dimension, begin, end);
  if (w.scales.absent()) return slice;
  const int64_t first = w.*offset + begin, last = w.*offset + end;
  const int64_t first_tile = first / kScaleTile;
  const int64_t end_tile = begin == end ? first_tile : (last + kScaleTile - 1) / kScaleTile;
  slice.scales = w.scales.Slice(dimension, first_tile, end_tile);
  slice.*offset = static_cast<int32_t>(first % kScaleTile);
  return slice;
}

}  // namespace

float Dequantize(const WeightTensor& w, int64_t row, int64_t col) {
  CHECK(w.values.rank() == 2 && row >= 0 && row < w.values.dim(0) && col >= 0 &&
            col < w.values.dim(1),
        "({}, {}) of {}", row, col, w.values.ToString());
  if (w.values.dtype() != DType::kF8E4M3) return LoadFloat(w.values, row, col);
  CHECK(!w.scales.absent(), "FP8 weight without scales");
  const int64_t at = row * w.values.stride(0) + col * w.values.stride(1);
  return ToFloat(w.values.As<E4M3>()[at]) *
         LoadFloat(w.scales, (w.row_offset + row) / kScaleTile, (w.col_offset + col) / kScaleTile);
}

WeightTensor SliceRows(const WeightTensor& w, int64_t begin, int64_t end) {
  return Slice(w, 0, begin, end, &WeightTensor::row_offset);
}

WeightTensor SliceCols(const WeightTensor& w, int64_t begin, int64_t end) {
  return Slice(w, 1, begin, end, &WeightTensor::col_offset);
}

WeightTensor Transposed(const WeightTensor& w) {
  WeightTensor transposed = w;
  transposed.values = w.values.Transposed();
  if (!w.scales.absent()) transposed.scales = w.scales.Transposed();
  std::swap(transposed.row_offset, transposed.col_offset);
  return transposed;
}

}  // namespace fathom
