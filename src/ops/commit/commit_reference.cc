#include "ops/reference_ops.h"

namespace fathom {

void CommitReference(OpContext&, const CommitArgs& a) {
  const int32_t* begin = a.row_begin.As<int32_t>();
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r];
    CHECK(slot >= 0 && slot < a.slots.counts.dim(0) && begin[r] < begin[r + 1] &&
              begin[r + 1] <= a.positions.dim(0),
          "commit: row {} is tokens [{}, {}) of slot {}", r, begin[r], begin[r + 1], slot);
    a.slots.length.As<int32_t>()[slot] = a.positions.As<int32_t>()[begin[r + 1] - 1] + 1;
    const int32_t index = a.sampled_index.As<int32_t>()[r];
    if (index < 0) continue;
    CHECK(index < a.sampled_tokens.dim(0), "commit: sample {}", index);
    const int32_t token = a.sampled_tokens.As<int32_t>()[index];
    if (token < 0) continue;
    CHECK(token < a.slots.counts.dim(1), "commit: token {}", token);
    a.slots.last_token.As<int32_t>()[slot] = token;
    ++a.slots.generated.As<int32_t>()[slot];
    ++a.slots.counts.Row<int32_t>(slot)[token];
  }
}

}  // namespace fathom
