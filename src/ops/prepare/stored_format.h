// How weights are stored, as every table's Prepare() asks.
#pragma once

#include "ops/packed_weight.h"

namespace fathom {

// REQUIRES: a floating point type or E4M3.
WeightFormat StoredFormat(const WeightTensor& part);

// The format that all parts are stored in. Parts of several types, or FP8 parts whose scale tiles
// do not line up, become fp32; with quantised activations they are refused.
Result<WeightFormat> CommonFormat(const PrepareArgs& a, bool quantize_activations);

}  // namespace fathom
