// How weights are stored, as every table's packing asks.
#pragma once

#include "products/packed_weight.h"

namespace fathom {

// Refuses, by name, parts that are stored as no packing reads them yet.
Status RefuseUnknownFormats(const PackArgs& a);

// The format that all parts are stored in, but for the place of each part's first output inside its
// scale tile; parts of several types are refused. FP8 parts whose columns do not line up in their
// scale tiles become fp32, or are refused with quantised activations.
Result<WeightFormat> CommonFormat(const PackArgs& a, bool quantize_activations);

}  // namespace fathom
