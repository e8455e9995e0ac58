#include "ops/route/choose_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/reference_math.h"

namespace fathom {
namespace {

// Logits to scores.
void Score(const RouteArgs& a, float* scores) {
  const int64_t experts = a.gate.dim(0);
  if (a.scoring == RouterScoring::kSigmoid) {
    for (int64_t e = 0; e < experts; ++e) scores[e] = Sigmoid(scores[e]);
    return;
  }
  const float max = *std::max_element(scores, scores + experts);
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += scores[e] = std::exp(scores[e] - max);
  for (int64_t e = 0; e < experts; ++e) scores[e] /= sum;
}

// The `best` highest of keys[0, n), highest first, ties to the lower index, at the front of order.
void OrderBest(const float* keys, int64_t n, int64_t best, int32_t* order) {
  std::iota(order, order + n, 0);
  std::partial_sort(order, order + best, order + n, [&](int32_t a, int32_t b) {
    if (RanksAbove(keys[a], keys[b])) return true;
    return !RanksAbove(keys[b], keys[a]) && a < b;
  });
}

// The best score of the group, or the sum of its best two.
float GroupScore(const float* choice, int64_t n, bool top_two) {
  float best = std::nanf(""), second = std::nanf("");
  for (int64_t i = 0; i < n; ++i) {
    if (RanksAbove(choice[i], best)) {
      second = best;
      best = choice[i];
    } else if (RanksAbove(choice[i], second)) {
      second = choice[i];
    }
  }
  return top_two && n > 1 ? best + second : best;
}

void MaskGroups(const RouteArgs& a, const RouteScratch& s) {
  const int64_t size = a.gate.dim(0) / a.n_group;
  for (int64_t g = 0; g < a.n_group; ++g) {
    s.groups[g] =
        GroupScore(s.choice + g * size, size, a.selection == RouterSelection::kGroupTopTwoBiased);
  }
  OrderBest(s.groups, a.n_group, a.topk_group, s.order);
  for (int64_t i = a.topk_group; i < a.n_group; ++i) {
    std::fill_n(s.choice + s.order[i] * size, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void ChooseExperts(const RouteArgs& a, int64_t t, const RouteScratch& s) {
  const int64_t experts = a.gate.dim(0), topk = a.ids.dim(1);
  Score(a, s.scores);
  for (int64_t e = 0; e < experts; ++e) {
    s.choice[e] = s.scores[e] + (a.bias.absent() ? 0.0f : a.bias.As<float>()[e]);
  }
  if (a.selection != RouterSelection::kGreedy) MaskGroups(a, s);
  OrderBest(s.choice, experts, topk, s.order);
  std::copy_n(s.order, topk, a.ids.As<int32_t>(t));
  float* weights = a.weights.As<float>(t);
  float sum = 0;
  for (int64_t i = 0; i < topk; ++i) sum += weights[i] = s.scores[s.order[i]];
  for (int64_t i = 0; i < topk; ++i) {
    if (a.norm_topk_prob) weights[i] /= sum + 1e-20f;
    weights[i] *= a.scaling;
  }
}

}  // namespace fathom
