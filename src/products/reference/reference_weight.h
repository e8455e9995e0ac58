// Weights of the reference table.
#pragma once

#include <cstdint>
#include <vector>

#include "products/packed_weight.h"

namespace fathom {

// Matrices lie transposed, [count, in, out], so that the sums of many outputs run side by side and
// each is still taken in index order.
struct ReferenceWeight final : PackedWeight {
  std::vector<float> values;  // the weights; of E4M3 the values of the codes
  std::vector<float> scales;  // of E4M3: [count, runs, out]

  const float* matrix(int64_t m) const { return values.data() + m * in * out; }
};

inline const ReferenceWeight& AsReference(const PackedWeight* weight) {
  return *static_cast<const ReferenceWeight*>(weight);
}

}  // namespace fathom
