#include "ops/check.h"

namespace fathom {

void Check(const LogProbsArgs& a) {
  CHECK(a.logits.rank() == 2 && a.top_ids.rank() == 2, "log_probs: logits are {}, top_ids {}",
        a.logits.ToString(), a.top_ids.ToString());
  const int64_t vectors = a.logits.dim(0), vocab = a.logits.dim(1), top = a.top_ids.dim(1);
  CHECK(top <= vocab, "log_probs: the best {} of {}", top, vocab);
  CheckTensor("log_probs: logits", a.logits, DType::kF32, {vectors, vocab});
  CheckTensor("log_probs: top_ids", a.top_ids, DType::kI32, {vectors, top});
  CheckLive("log_probs: live", a.live);
  const SlotIds& named = a.named;
  if (a.top_logprobs.absent()) {
    CHECK(a.tokens.absent() && a.logprob.absent() && named.logprobs.absent(),
          "log_probs: some are asked for beside ids alone");
    return;
  }
  CheckTensor("log_probs: tokens", a.tokens, DType::kI32, {vectors});
  CheckTensor("log_probs: logprob", a.logprob, DType::kF32, {vectors});
  CheckTensor("log_probs: top_logprobs", a.top_logprobs, DType::kF32, {vectors, top});
  if (named.logprobs.absent()) return;
  CHECK(named.token_slot.rank() == 1 && named.of_slots.rank() == 2 && named.logprobs.rank() == 2,
        "log_probs: slots' ids are {}, their logprobs {}", named.of_slots.ToString(),
        named.logprobs.ToString());
  const int64_t ids = named.logprobs.dim(1), most = named.of_slots.dim(1);
  CHECK(ids <= most, "log_probs: {} of {} ids", ids, most);
  CheckTensor("log_probs: index", named.index, DType::kI32, {vectors});
  CheckTensor("log_probs: token_slot", named.token_slot, DType::kI32, {named.token_slot.dim(0)});
  CheckTensor("log_probs: slots' ids", named.of_slots, DType::kI32, {named.of_slots.dim(0), most});
  CheckTensor("log_probs: named logprobs", named.logprobs, DType::kF32, {vectors, ids});
}

}  // namespace fathom
