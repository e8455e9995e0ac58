// How weights are stored, as every table's packing asks.
#pragma once

#include "products/packed_weight.h"

namespace fathom {

// REQUIRES: a floating point type or E4M3.
WeightFormat StoredFormat(const WeightTensor& part);

// The format that all parts are stored in; parts of several types are refused. FP8 parts whose
// scale tiles do not line up become fp32, or are refused with quantised activations.
Result<WeightFormat> CommonFormat(const PackArgs& a, bool quantize_activations);

}  // namespace fathom
