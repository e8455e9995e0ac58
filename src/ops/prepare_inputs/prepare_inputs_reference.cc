#include "ops/reference_ops.h"

namespace fathom {

void PrepareInputsReference(OpContext&, const PrepareInputsArgs& a) {
  const int32_t rows = *a.live_rows.As<int32_t>();
  const int32_t* begin = a.row_begin.As<int32_t>();
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r];
    CHECK(slot >= 0 && slot < a.slots.length.dim(0) && begin[r] <= begin[r + 1] &&
              begin[r + 1] <= a.ids.dim(0),
          "prepare_inputs: row {} is tokens [{}, {}) of slot {}", r, begin[r], begin[r + 1], slot);
    const int32_t planned = a.plan_position.As<int32_t>()[r];
    const int32_t position = planned == -1 ? a.slots.length.As<int32_t>()[slot] : planned;
    for (int32_t t = begin[r]; t < begin[r + 1]; ++t) {
      const int32_t token = a.plan_tokens.As<int32_t>()[t];
      a.ids.As<int32_t>()[t] = token == -1 ? a.slots.last_token.As<int32_t>()[slot] : token;
      a.positions.As<int32_t>()[t] = position + (t - begin[r]);
      a.token_slot.As<int32_t>()[t] = slot;
    }
  }
  *a.live_tokens.As<int32_t>() = begin[rows];
}

}  // namespace fathom
