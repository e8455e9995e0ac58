#include "ops/check.h"

namespace fathom {

void Check(const SampleArgs& a) {
  const SlotState& s = a.slots;
  CHECK(a.logits.rank() == 2 && a.positions.rank() == 1 && s.temperature.rank() == 1,
        "sample: logits are {}, positions {}, slots.temperature {}", a.logits.ToString(),
        a.positions.ToString(), s.temperature.ToString());
  const int64_t vectors = a.logits.dim(0), tokens = a.positions.dim(0),
                slots = s.temperature.dim(0);
  CheckTensor("sample: logits", a.logits, DType::kF32, {vectors, a.logits.dim(1)});
  CheckTensor("sample: index", a.index, DType::kI32, {vectors});
  CheckTensor("sample: token_slot", a.token_slot, DType::kI32, {tokens});
  CheckTensor("sample: positions", a.positions, DType::kI32, {tokens});
  CheckTensor("sample: slots.temperature", s.temperature, DType::kF32, {slots});
  CheckTensor("sample: slots.top_p", s.top_p, DType::kF32, {slots});
  CheckTensor("sample: slots.min_p", s.min_p, DType::kF32, {slots});
  CheckTensor("sample: slots.top_k", s.top_k, DType::kI32, {slots});
  CheckTensor("sample: slots.seed", s.seed, DType::kI32, {slots, 2});
  CheckTensor("sample: tokens", a.tokens, DType::kI32, {vectors});
  CheckTensor("sample: ok", a.ok, DType::kI32, {vectors});
  CheckLive("sample: live", a.live);
}

}  // namespace fathom
