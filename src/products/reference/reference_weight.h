// Weights of the reference table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products/packed_weight.h"

namespace fathom {

// Matrices lie transposed, [count, in, out], so that the sums of many outputs run side by side and
// each is still taken in index order.
struct ReferenceWeight final : PackedWeight {
  std::vector<float> values;  // kF32: the weights; kFp8: the values of their E4M3 codes
  std::vector<float> scales;  // kFp8: [count, runs, out]
  int64_t first_run = 0;  // kFp8: channels of the first run; kScaleTile unless cut inside a tile

  const float* matrix(int64_t m) const { return values.data() + m * in * out; }
  int64_t runs() const { return 1 + (in - first_run + kScaleTile - 1) / kScaleTile; }
  int64_t run_begin(int64_t r) const { return r == 0 ? 0 : first_run + (r - 1) * kScaleTile; }
  int64_t run_end(int64_t r) const { return std::min(in, first_run + r * kScaleTile); }
};

inline const ReferenceWeight& AsReference(const PackedWeight* weight) {
  return *static_cast<const ReferenceWeight*>(weight);
}

}  // namespace fathom
