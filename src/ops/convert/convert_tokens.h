// What CPU tables and the reference make of a number.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace fathom {

// Tokens [begin, end).
inline void ConvertTokens(const ConvertArgs& a, int64_t begin, int64_t end) {
  const int64_t width = a.x.dim(1);
  const auto convert = [&](const auto* x, auto* out, const auto& of) {
    for (int64_t i = begin * width; i < end * width; ++i) out[i] = of(x[i]);
  };
  if (a.x.dtype() == DType::kF32) {
    convert(a.x.As<float>(), a.out.As<BF16>(), [](float x) { return ToBF16(x); });
  } else {
    convert(a.x.As<BF16>(), a.out.As<float>(), [](BF16 x) { return ToFloat(x); });
  }
}

}  // namespace fathom
