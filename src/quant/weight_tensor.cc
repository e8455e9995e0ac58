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
  Groups& groups = dimension == 0 ? slice.format.scales.outputs : slice.format.scales.channels;
  const int64_t first = groups.Of(begin);
  slice.scales = w.scales.Slice(dimension, first, begin == end ? first : groups.Of(end - 1) + 1);
  groups.offset = (groups.offset + begin) % groups.size;
  return slice;
}

}  // namespace

WeightTensor StoredWeight(const TensorView& values, const TensorView& scales) {
  return {.values = values, .scales = scales, .format = FormatOf(values.dtype())};
}

float Dequantize(const WeightTensor& w, int64_t output, int64_t channel) {
  CHECK(w.values.rank() == 2 && output >= 0 && output < w.values.dim(0) && channel >= 0 &&
            channel < w.values.dim(1),
        "({}, {}) of {}", output, channel, w.values.ToString());
  if (w.format.values != WeightType::kE4M3) return LoadFloat(w.values, output, channel);
  CHECK(!w.scales.absent(), "FP8 weight without scales");
  const int64_t at = output * w.values.stride(0) + channel * w.values.stride(1);
  const ScaleGroups& groups = w.format.scales;
  return ToFloat(w.values.As<E4M3>()[at]) *
         LoadFloat(w.scales, groups.outputs.Of(output), groups.channels.Of(channel));
}

WeightTensor SliceOutputs(const WeightTensor& w, int64_t begin, int64_t end) {
  return Slice(w, 0, begin, end);
}

WeightTensor SliceChannels(const WeightTensor& w, int64_t begin, int64_t end) {
  return Slice(w, 1, begin, end);
}

WeightTensor Transposed(const WeightTensor& w) {
  WeightTensor transposed = w;
  transposed.values = w.values.Transposed();
  if (!w.scales.absent()) transposed.scales = w.scales.Transposed();
  std::swap(transposed.format.scales.outputs, transposed.format.scales.channels);
  return transposed;
}

}  // namespace fathom
