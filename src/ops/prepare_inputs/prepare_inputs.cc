#include "ops/check.h"

namespace fathom {

void Check(const PrepareInputsArgs& a) {
  CHECK(a.row_slot.rank() == 1 && a.ids.rank() == 1 && a.slots.length.rank() == 1 &&
            a.slots.drafts.rank() == 2 && a.logit_index.rank() == 1 && a.pass_live.rank() == 1,
        "prepare_inputs: row_slot is {}, ids are {}, slots.length is {}, slots.drafts {}, "
        "logit_index {}, pass_live {}",
        a.row_slot.ToString(), a.ids.ToString(), a.slots.length.ToString(),
        a.slots.drafts.ToString(), a.logit_index.ToString(), a.pass_live.ToString());
  const int64_t rows = a.row_slot.dim(0), tokens = a.ids.dim(0), slots = a.slots.length.dim(0);
  const int64_t logits = a.logit_index.dim(0), passes = a.pass_live.dim(0);
  CHECK(a.expanded_tokens >= 0 && a.expanded_tokens <= tokens && a.pass_vectors >= 1 &&
            passes * a.pass_vectors >= logits,
        "prepare_inputs: {} expanded of {} tokens, {} logit vectors in {} passes of {}",
        a.expanded_tokens, tokens, logits, passes, a.pass_vectors);
  const auto check = [](const char* name, const TensorView& view,
                        std::initializer_list<int64_t> shape) {
    CheckTensor(name, view, DType::kI32, shape);
  };
  check("prepare_inputs: row_slot", a.row_slot, {rows});
  check("prepare_inputs: row_capacity", a.row_capacity, {rows + 1});
  check("prepare_inputs: plan_tokens", a.plan_tokens, {tokens});
  check("prepare_inputs: plan_begin", a.plan_begin, {rows});
  check("prepare_inputs: plan_samples", a.plan_samples, {rows});
  CheckLive("prepare_inputs: live_rows", a.live_rows);
  check("prepare_inputs: slots.last_token", a.slots.last_token, {slots});
  check("prepare_inputs: slots.length", a.slots.length, {slots});
  check("prepare_inputs: slots.final_length", a.slots.final_length, {slots});
  check("prepare_inputs: slots.ended", a.slots.ended, {slots});
  check("prepare_inputs: slots.drafts", a.slots.drafts, {slots, a.slots.drafts.dim(1)});
  check("prepare_inputs: slots.num_drafts", a.slots.num_drafts, {slots});
  check("prepare_inputs: ids", a.ids, {tokens});
  check("prepare_inputs: positions", a.positions, {tokens});
  check("prepare_inputs: token_slot", a.token_slot, {tokens});
  CheckLive("prepare_inputs: live_tokens", a.live_tokens);
  CheckLive("prepare_inputs: absorbed_live", a.absorbed_live);
  check("prepare_inputs: row_begin", a.row_begin, {rows + 1});
  check("prepare_inputs: row_count", a.row_count, {rows});
  check("prepare_inputs: logit_begin", a.logit_begin, {rows + 1});
  check("prepare_inputs: logit_index", a.logit_index, {logits});
  check("prepare_inputs: logit_ordinal", a.logit_ordinal, {logits});
  check("prepare_inputs: pass_live", a.pass_live, {passes});
}

}  // namespace fathom
