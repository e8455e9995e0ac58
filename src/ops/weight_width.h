// What a weight format takes, and what it is called.
#pragma once

#include <string_view>

#include "base/check.h"
#include "ops/packed_weight.h"

namespace fathom {

// Bytes per weight, scales included.
inline double WidthOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return 4;
    case WeightFormat::kF16: return 2;
    case WeightFormat::kBF16: return 2;
    case WeightFormat::kFp8: return 1 + sizeof(float) / double{kScaleTile * kScaleTile};
    case WeightFormat::kInt8: return 1 + sizeof(float) / double{kScaleTile};
    // A scale per 128 weights, and four multipliers of a byte.
    case WeightFormat::kInt4: return 0.5 + (sizeof(float) + 4) / double{kScaleTile};
  }
  CHECK(false, "an unknown weight format");
}

inline std::string_view Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "fp32";
    case WeightFormat::kF16: return "fp16";
    case WeightFormat::kBF16: return "bf16";
    case WeightFormat::kFp8: return "fp8";
    case WeightFormat::kInt8: return "int8";
    case WeightFormat::kInt4: return "int4";
  }
  CHECK(false, "an unknown weight format");
}

}  // namespace fathom
