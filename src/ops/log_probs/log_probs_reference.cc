// The log-sum-exp runs in double: over a vocabulary it is the one sum that fp32 would blur.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/log_probs/log_probs_vector.h"
#include "ops/reference_math.h"
#include "ops/reference_ops.h"

namespace fathom {

size_t LogProbsReferenceWorkspace(const Stream&, const LogProbsArgs& a) {
  return a.logits.dim(1) * sizeof(int32_t);  // ids in order of falling logit
}

static double LogSumExp(const float* logits, int64_t n) {
  const double max = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t v = 0; v < n; ++v) sum += std::exp(logits[v] - max);
  return max + std::log(sum);
}

static void NamedLogProbs(const LogProbsArgs& a, int64_t vector, double lse) {
  const SlotIds& named = a.named;
  const int64_t vocab = a.logits.dim(1), slots = named.of_slots.dim(0);
  const int32_t token = named.index.As<int32_t>()[vector];
  CHECK(token >= 0 && token < named.token_slot.dim(0), "log_probs: index {}", token);
  const int32_t slot = named.token_slot.As<int32_t>()[token];
  CHECK(slot >= 0 && slot < slots, "log_probs: slot {} of {}", slot, slots);
  for (int64_t i = 0; i < named.logprobs.dim(1); ++i) {
    const int32_t id = named.of_slots.As<int32_t>(slot)[i];
    CHECK(id >= -1 && id < vocab, "log_probs: named id {} of {}", id, vocab);
    named.logprobs.As<float>(vector)[i] =
        id < 0 ? NAN : static_cast<float>(a.logits.As<float>(vector)[id] - lse);
  }
}

// The ids of the `top` greatest to the front of `order`.
static void FindTop(const float* logits, int64_t vocab, int64_t top, int32_t* order) {
  const auto before = [&](int32_t x, int32_t y) {
    if (RanksAbove(logits[x], logits[y])) return true;
    return !RanksAbove(logits[y], logits[x]) && x < y;
  };
  if (top == 1) {  // a draft is
    *order = 0;
    for (int32_t v = 1; v < vocab; ++v) {
      if (RanksAbove(logits[v], logits[*order])) *order = v;
    }
    return;
  }
  std::iota(order, order + vocab, 0);
  std::partial_sort(order, order + top, order + vocab, before);
}

void LogProbsVector(const LogProbsArgs& a, int64_t vector, int32_t* order) {
  const int64_t vocab = a.logits.dim(1), top = a.top_ids.dim(1);
  const float* logits = a.logits.As<float>(vector);
  FindTop(logits, vocab, top, order);
  std::copy_n(order, top, a.top_ids.As<int32_t>(vector));
  if (a.top_logprobs.absent()) return;
  const int32_t token = a.tokens.As<int32_t>()[vector];
  CHECK(token >= -1 && token < vocab, "log_probs: token {} of {}", token, vocab);
  const double lse = LogSumExp(logits, vocab);
  a.logprob.As<float>()[vector] = token < 0 ? NAN : static_cast<float>(logits[token] - lse);
  for (int64_t i = 0; i < top; ++i) {
    a.top_logprobs.As<float>(vector)[i] = static_cast<float>(logits[order[i]] - lse);
  }
  if (!a.named.logprobs.absent()) NamedLogProbs(a, vector, lse);
}

void LogProbsReference(OpContext& context, const LogProbsArgs& a) {
  int32_t* order = reinterpret_cast<int32_t*>(context.workspace.data());
  for (int64_t vector = 0; vector < *a.live.As<int32_t>(); ++vector)
    LogProbsVector(a, vector, order);
}

}  // namespace fathom
