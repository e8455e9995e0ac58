// Probabilities and their sums are in double, in order of falling logit.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/reference_ops.h"
#include "ops/sample/request.h"

namespace fathom {
namespace {

// Whether every logit is a number or -inf, and one is finite.
bool Sampleable(const float* logits, int64_t vocab) {
  const bool valid = std::all_of(logits, logits + vocab, [](float x) { return x < INFINITY; });
  return valid && std::any_of(logits, logits + vocab, [](float x) { return x > -INFINITY; });
}

int32_t Draw(const SampleRequest& request, const float* logits, int64_t vocab, int32_t* order) {
  std::iota(order, order + vocab, 0);
  std::sort(order, order + vocab, [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  if (request.temperature == 0) return order[0];
  // Relative to the likeliest token.
  const double max = logits[order[0]];
  const auto probability = [&](int64_t i) {
    return std::exp((logits[order[i]] - max) / request.temperature);
  };

  int64_t kept = request.top_k > 0 ? std::min(request.top_k, vocab) : vocab;
  double mass = 0;
  for (int64_t i = 0; i < kept; ++i) mass += probability(i);
  double sum = 0;
  for (int64_t i = 0; i < kept; ++i) {
    sum += probability(i);
    if (sum >= request.top_p * mass) kept = i + 1;
  }
  while (kept > 1 && probability(kept - 1) < request.min_p) --kept;

  mass = 0;
  for (int64_t i = 0; i < kept; ++i) mass += probability(i);
  sum = 0;
  for (int64_t i = 0; i < kept; ++i) {
    sum += probability(i);
    if (sum > request.uniform * mass) return order[i];
  }
  CHECK(false, "sample: a uniform of {} exhausts the mass", request.uniform);
}

}  // namespace

size_t SampleReferenceWorkspace(const Stream&, const SampleArgs& a) {
  return a.logits.dim(1) * sizeof(int32_t);  // ids in order of falling logit
}

void SampleReference(OpContext& context, const SampleArgs& a) {
  const int64_t vocab = a.logits.dim(1);
  int32_t* order = reinterpret_cast<int32_t*>(context.workspace.data());
  for (int64_t vector = 0; vector < *a.live.As<int32_t>(); ++vector) {
    const float* logits = a.logits.As<float>(vector);
    const bool ok = Sampleable(logits, vocab);
    a.ok.As<int32_t>()[vector] = ok ? 1 : 0;
    a.tokens.As<int32_t>()[vector] = ok ? Draw(RequestOf(a, vector), logits, vocab, order) : -1;
  }
}

}  // namespace fathom
