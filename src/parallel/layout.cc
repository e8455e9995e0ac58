#include "parallel/layout.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {

Share ShareOf(int64_t n, int64_t unit, int ranks, int rank) {
  CHECK(n >= 0 && unit > 0 && rank >= 0 && rank < ranks, "share {} of {} in units of {}", rank, n,
        unit);
  const int64_t units = (n + unit - 1) / unit, each = units / ranks, more = units % ranks;
  const auto begin = [&](int64_t r) {
    return std::min(n, (r * each + std::min<int64_t>(r, more)) * unit);
  };
  return {begin(rank), begin(rank + 1)};
}

int64_t ShareUnit(int64_t n, int ranks) {
  for (int64_t unit = 128; unit > 0; unit /= 2) {
    if ((n + unit - 1) / unit >= ranks) return unit;
  }
  return 0;
}

}  // namespace fathom
