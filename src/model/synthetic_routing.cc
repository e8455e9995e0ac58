#include "model/synthetic_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/rng.h"

namespace fathom {
namespace {

constexpr uint64_t kDrawSeed = 0x5eed, kOrderSeed = 0x0de4;

// One of `left`, which sum up to `total`, by its share.
size_t DrawOne(std::span<const double> left, double total, Rng& rng) {
  double at = rng.Uniform() * total;
  size_t last = 0;  // of those above 0: sums are rounded, so that none may be found
  for (size_t expert = 0; expert < left.size(); ++expert) {
    if (left[expert] <= 0) continue;
    last = expert;
    at -= left[expert];
    if (at < 0) break;
  }
  return last;
}

}  // namespace

SyntheticRouting SyntheticRouting::Uniform(const ModelConfig& config) {
  return {.shares = {std::vector<double>(static_cast<size_t>(config.n_routed_experts), 1.0)}};
}

SyntheticRouting SyntheticRouting::Zipf(const ModelConfig& config) {
  SyntheticRouting routing;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    std::vector<double> shares;
    for (int i = 1; i <= config.n_routed_experts; ++i) shares.push_back(1.0 / i);
    Rng rng(kOrderSeed, static_cast<uint64_t>(layer));
    for (size_t i = shares.size(); i > 1; --i) {
      std::swap(shares[i - 1], shares[rng.Below(static_cast<uint32_t>(i))]);
    }
    routing.shares.push_back(std::move(shares));
  }
  return routing;
}

Status SyntheticRouting::Check(const ModelConfig& config) const {
  if (config.n_routed_experts == 0) {
    return InvalidArgument("--synthetic-routing: the model has no experts");
  }
  int layers = 0;
  for (int layer = 0; layer < config.num_layers; ++layer)
    layers += config.IsMoeLayer(layer) ? 1 : 0;
  if (shares.size() != 1 && shares.size() != static_cast<size_t>(layers)) {
    return InvalidArgument(
        "--synthetic-routing: shares of {} layers, the model has {} with experts", shares.size(),
        layers);
  }
  for (const std::vector<double>& layer : shares) {
    if (layer.size() != static_cast<size_t>(config.n_routed_experts)) {
      return InvalidArgument("--synthetic-routing: shares of {} experts, the model has {}",
                             layer.size(), config.n_routed_experts);
    }
    const bool good =
        std::all_of(layer.begin(), layer.end(), [](double s) { return s >= 0 && s <= 1e15; });
    const auto chosen = std::count_if(layer.begin(), layer.end(), [](double s) { return s > 0; });
    if (!good || chosen < config.num_experts_per_tok) {
      return InvalidArgument(
          "--synthetic-routing: shares are numbers from 0 to 1e15, and {} or more of a layer's are "
          "above 0",
          config.num_experts_per_tok);
    }
  }
  return {};
}

std::vector<int32_t> SyntheticRouting::Draw(const ModelConfig& config, int64_t tokens, int layer,
                                            int group) const {
  const std::vector<double>& of_layer =
      shares.size() == 1 ? shares[0] : shares[static_cast<size_t>(layer)];
  const double all = std::accumulate(of_layer.begin(), of_layer.end(), 0.0);
  Rng rng(kDrawSeed, static_cast<uint64_t>(layer) << 32 | static_cast<uint32_t>(group));
  std::vector<int32_t> ids;
  std::vector<double> left;
  for (int64_t token = 0; token < tokens; ++token) {
    left = of_layer;
    double total = all;
    for (int i = 0; i < config.num_experts_per_tok; ++i) {
      const size_t expert = DrawOne(left, total, rng);
      total -= std::exchange(left[expert], 0.0);
      ids.push_back(static_cast<int32_t>(expert));
    }
    for (int i = 0; i < config.n_shared_experts; ++i) ids.push_back(config.n_routed_experts + i);
  }
  return ids;
}

}  // namespace fathom
