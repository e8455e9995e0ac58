// Integer weights, made at load.
#pragma once

#include <cstdint>

#include "products/cpu/cpu_weight.h"

namespace fathom {

// Both quantise a run of n <= kScaleTile channels of kPanel outputs, values [kScaleTile, kPanel]
// with zeros from n on, and give a scale per output: NaN where a value is not finite. Layouts are
// those of cpu_weight.h.

// weight = scale * (code - 128), code in [1, 255]; scale = max |weight| / 127.
void QuantizePanelInt8(const float* values, int64_t n, uint8_t* to, float* scales);

// weight = scale * multiplier * (code - 8), code in [0, 15] and a multiplier in [1, 15] for each
// kSubRun channels: of the three nearest the one with the least squared error.
void QuantizePanelInt4(const float* values, int64_t n, uint8_t* to, float* scales);

}  // namespace fathom
