// A weight as the checkpoint stores it.
#pragma once

#include <cstdint>

#include "quant/e4m3.h"
#include "quant/weight_format.h"
#include "tensor/tensor_view.h"

namespace fathom {

// Views of mapped files; a slice or a transpose is again a view.
struct WeightTensor {
  TensorView values;  // [out, in] in BF16, F16, F32 or F8_E4M3, any strides; a vector has rank 1
  // [groups of outputs, groups of channels] of format.scales: weight = value * scale. Absent where
  // the format has none.
  TensorView scales;
  WeightFormat format;
};

// A weight in the format that checkpoints store such values in, with the scales that this asks for.
WeightTensor StoredWeight(const TensorView& values, const TensorView& scales = {});

// The weight at (output, channel) in fp32. Slow: for packing, checks and tests.
// REQUIRES: rank 2, in range.
float Dequantize(const WeightTensor& w, int64_t output, int64_t channel);

// Outputs or input channels [begin, end); a border may cut a group of the scales. REQUIRES: rank 2,
// in range.
WeightTensor SliceOutputs(const WeightTensor& w, int64_t begin, int64_t end);
WeightTensor SliceChannels(const WeightTensor& w, int64_t begin, int64_t end);
// Outputs and channels exchanged. REQUIRES: rank 2.
WeightTensor Transposed(const WeightTensor& w);

}  // namespace fathom
