#include "base/token_mask.h"
#include "ops/check.h"

namespace fathom {

void Check(const AdjustLogitsArgs& a) {
  const SlotState& s = a.slots;
  CHECK(a.logits.rank() == 2 && a.token_slot.rank() == 1 && s.counts.rank() == 2 &&
            s.stop_tokens.rank() == 2 && s.bias_ids.rank() == 2 && s.drafts.rank() == 2,
        "adjust_logits: logits are {}, slots.counts {}, slots.stop_tokens {}, slots.bias_ids {}, "
        "slots.drafts {}",
        a.logits.ToString(), s.counts.ToString(), s.stop_tokens.ToString(), s.bias_ids.ToString(),
        s.drafts.ToString());
  const int64_t vectors = a.logits.dim(0), vocab = a.logits.dim(1), slots = s.counts.dim(0);
  CheckTensor("adjust_logits: logits", a.logits, DType::kF32, {vectors, vocab});
  CheckTensor("adjust_logits: index", a.index, DType::kI32, {vectors});
  CheckTensor("adjust_logits: ordinal", a.ordinal, DType::kI32, {vectors});
  CheckTensor("adjust_logits: token_slot", a.token_slot, DType::kI32, {a.token_slot.dim(0)});
  CheckTensor("adjust_logits: slots.counts", s.counts, DType::kI32, {slots, vocab});
  CheckTensor("adjust_logits: slots.drafts", s.drafts, DType::kI32, {slots, s.drafts.dim(1)});
  CheckTensor("adjust_logits: slots.in_prompt", s.in_prompt, DType::kU8, {slots, vocab});
  CheckTensor("adjust_logits: slots.presence", s.presence, DType::kF32, {slots});
  CheckTensor("adjust_logits: slots.frequency", s.frequency, DType::kF32, {slots});
  CheckTensor("adjust_logits: slots.repetition", s.repetition, DType::kF32, {slots});
  CheckTensor("adjust_logits: slots.generated", s.generated, DType::kI32, {slots});
  CheckTensor("adjust_logits: slots.min_tokens", s.min_tokens, DType::kI32, {slots});
  CheckTensor("adjust_logits: slots.stop_tokens", s.stop_tokens, DType::kI32,
              {slots, s.stop_tokens.dim(1)});
  const int64_t biases = s.bias_ids.dim(1);
  CheckTensor("adjust_logits: slots.bias_ids", s.bias_ids, DType::kI32, {slots, biases});
  CheckTensor("adjust_logits: slots.bias_values", s.bias_values, DType::kF32, {slots, biases});
  CheckTensor("adjust_logits: slots.masked", s.masked, DType::kI32, {slots});
  CheckTensor("adjust_logits: slots.mask", s.mask, DType::kI32,
              {slots, (1 + s.drafts.dim(1)) * MaskWords(vocab)});
  CheckLive("adjust_logits: live", a.live);
}

}  // namespace fathom
