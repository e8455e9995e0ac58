#include "products/packed_weight.h"

#include "base/check.h"

namespace fathom {

void Check(const PackArgs& a) {
  CHECK(!a.matrices.empty() && !a.matrices[0].parts.empty(), "pack: no matrix");
  const std::vector<WeightTensor>& first = a.matrices[0].parts;
  CHECK(first[0].values.rank() == 2, "pack: a part {}", first[0].values.ToString());
  const int64_t in = first[0].values.dim(1);
  for (const WeightSource& source : a.matrices) {
    CHECK(source.parts.size() == first.size(), "pack: matrices of {} and {} parts", first.size(),
          source.parts.size());
    for (size_t i = 0; i < first.size(); ++i) {
      const WeightTensor& part = source.parts[i];
      CHECK(part.values.rank() == 2 && part.values.dim(1) == in && in > 0 &&
                part.values.dim(0) == first[i].values.dim(0) && part.values.dim(0) > 0,
            "pack: a part {} beside {}", part.values.ToString(), first[i].values.ToString());
      CHECK((part.format.scales.type != ScaleType::kNone) != part.scales.absent(),
            "pack: a part {} with scales {}", part.values.ToString(), part.scales.ToString());
      CHECK(!IsStoredFormat(part.format) ||
                part.format.values == FormatOf(part.values.dtype()).values,
            "pack: a part {} said to be {}", part.values.ToString(), Name(part.format.values));
    }
  }
}

}  // namespace fathom
