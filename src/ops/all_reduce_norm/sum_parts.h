// The sum that CPU ranks and the reference make.
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"
#include "ops/pieces.h"

namespace fathom {

// What each rank brings: its parts of these tokens.
inline MeetingRanks::Bounds BoundsOfParts(const AllReduceNormArgs& a, int64_t tokens) {
  const TensorView& x = a.norm.x;
  return TokenBounds(tokens, x.dim(0), static_cast<size_t>(x.dim(1)) * ByteSize(x.dtype()));
}

// Adds tokens [begin, end) of what all ranks brought to the residual, or begins it with them.
inline void SumParts(const AllReduceNormArgs& a, std::span<const MeetingRanks::Pieces> parts,
                     int64_t begin, int64_t end) {
  const int64_t width = a.norm.x.dim(1);
  float* residual = a.norm.residual.As<float>();
  for (int64_t i = begin * width; i < end * width; ++i) {
    float sum = As<float>(parts[0][0])[i];
    for (size_t r = 1; r < parts.size(); ++r) sum += As<float>(parts[r][0])[i];
    residual[i] = a.begins ? sum : residual[i] + sum;
  }
}

// The norm that follows: of the residual alone.
inline RmsNormArgs NormOfSum(const AllReduceNormArgs& a) {
  RmsNormArgs norm = a.norm;
  norm.x = norm.residual;
  norm.residual = {};
  return norm;
}

}  // namespace fathom
