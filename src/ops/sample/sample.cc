#include "ops/check.h"

namespace fathom {

void Check(const SampleArgs& a) {
  const SlotState& s = a.slots;
  CHECK(a.logits.rank() == 2 && s.temperature.rank() == 1,
        "sample: logits are {}, slots.temperature {}", a.logits.ToString(),
        s.temperature.ToString());
  const int64_t rows = a.logits.dim(0), slots = s.temperature.dim(0);
  CheckTensor("sample: logits", a.logits, DType::kF32, {rows, a.logits.dim(1)});
  CheckTensor("sample: row_slot", a.row_slot, DType::kI32, {rows});
  CheckTensor("sample: position", a.position, DType::kI32, {rows});
  CheckTensor("sample: slots.temperature", s.temperature, DType::kF32, {slots});
  CheckTensor("sample: slots.top_p", s.top_p, DType::kF32, {slots});
  CheckTensor("sample: slots.min_p", s.min_p, DType::kF32, {slots});
  CheckTensor("sample: slots.top_k", s.top_k, DType::kI32, {slots});
  CheckTensor("sample: slots.seed", s.seed, DType::kI32, {slots, 2});
  CheckTensor("sample: tokens", a.tokens, DType::kI32, {rows});
  CheckTensor("sample: ok", a.ok, DType::kI32, {rows});
  CheckLive("sample: live", a.live);
}

}  // namespace fathom
