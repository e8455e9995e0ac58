#include "ops/check.h"

namespace fathom {

void Check(const PrepareInputsArgs& a) {
  CHECK(a.row_slot.rank() == 1 && a.ids.rank() == 1 && a.slots.length.rank() == 1,
        "prepare_inputs: row_slot is {}, ids are {}, slots.length is {}", a.row_slot.ToString(),
        a.ids.ToString(), a.slots.length.ToString());
  const int64_t rows = a.row_slot.dim(0), tokens = a.ids.dim(0), slots = a.slots.length.dim(0);
  CheckTensor("prepare_inputs: row_slot", a.row_slot, DType::kI32, {rows});
  CheckTensor("prepare_inputs: row_begin", a.row_begin, DType::kI32, {rows + 1});
  CheckTensor("prepare_inputs: plan_tokens", a.plan_tokens, DType::kI32, {tokens});
  CheckTensor("prepare_inputs: plan_position", a.plan_position, DType::kI32, {rows});
  CheckLive("prepare_inputs: live_rows", a.live_rows);
  CheckTensor("prepare_inputs: slots.last_token", a.slots.last_token, DType::kI32, {slots});
  CheckTensor("prepare_inputs: slots.length", a.slots.length, DType::kI32, {slots});
  CheckTensor("prepare_inputs: ids", a.ids, DType::kI32, {tokens});
  CheckTensor("prepare_inputs: positions", a.positions, DType::kI32, {tokens});
  CheckTensor("prepare_inputs: token_slot", a.token_slot, DType::kI32, {tokens});
  CheckLive("prepare_inputs: live_tokens", a.live_tokens);
}

}  // namespace fathom
