#include "model/expert_exchange.h"

#include <algorithm>
#include <vector>

namespace fathom {

PairExchange::PairExchange(const ModelConfig& config, const Shard& shard, const Ops& ops)
    : ranks_(shard.groups.experts),
      world_(shard.layout.stage_ranks()),
      cut_(shard.layout.cuts_over_groups()),
      routed_(cut_ ? world_ : config.n_routed_experts),
      shared_(cut_ ? 0 : config.n_shared_experts),
      topk_(cut_ ? world_ : config.num_experts_per_tok),
      hidden_(config.hidden_size),
      most_local_(cut_ ? 1 : std::min<int64_t>(topk_, shard.Experts(routed_).size())),
      at_a_time_(std::max<int64_t>(1, ops.exchange_tokens / shard.layout.stage_ranks())),
      stride_(shard.layout.tensor),
      offset_(shard.tensor_rank) {}

int64_t PairExchange::EachOf(int64_t tokens) const {
  return std::min(at_a_time_, (tokens + stride_ - 1) / stride_);
}

int64_t PairExchange::MostPairs(int64_t each) const {
  return world_ * each * most_local_ + each * shared_;
}

size_t PairExchange::LayOut(int64_t max_tokens, DType activation, Arena arena) {
  const int64_t pairs = MostPairs(EachOf(max_tokens));
  x_ = arena.Allocate(activation, {pairs, hidden_});
  y_ = arena.Allocate(activation, {pairs, hidden_});
  ids_ = arena.Allocate(DType::kI32, {pairs, 1});
  origin_ = arena.Allocate(DType::kI32, {pairs});
  ones_ = arena.Allocate(DType::kF32, {pairs, 1});
  live_ = arena.Allocate(DType::kI32, {1});
  if (cut_) {
    all_ids_ = arena.Allocate(DType::kI32, {max_tokens, world_});
    all_weights_ = arena.Allocate(DType::kF32, {max_tokens, world_});
  }
  return arena.used();
}

size_t PairExchange::Bytes(const ModelConfig& config, const Shard& shard, const Ops& ops,
                           int64_t max_tokens) {
  if (!UsedBy(config, shard.layout)) return 0;
  return PairExchange(config, shard, ops).LayOut(max_tokens, ops.activation, Arena::Measuring());
}

int64_t PairExchange::TokensRouted(const ModelConfig& config, const Shard& shard, const Ops& ops,
                                   int64_t max_tokens) {
  if (!UsedBy(config, shard.layout) || !shard.layout.cuts_over_groups()) return max_tokens;
  const PairExchange exchange(config, shard, ops);
  return std::max(max_tokens, exchange.MostPairs(exchange.EachOf(max_tokens)));
}

PairExchange::PairExchange(const ModelConfig& config, const Shard& shard, const Ops& ops,
                           int64_t max_tokens, Device& device)
    : PairExchange(config, shard, ops) {
  memory_ = device.Allocate(Bytes(config, shard, ops, max_tokens));
  LayOut(max_tokens, ops.activation, Arena(memory_->data(), memory_->size()));
  const std::vector<float> ones(static_cast<size_t>(ones_.elements()), 1.0f);
  device.Upload(ones_, std::as_bytes(std::span(ones)));
  if (!cut_) return;
  std::vector<int32_t> all;
  for (int64_t i = 0; i < all_ids_.elements(); ++i) all.push_back(static_cast<int32_t>(i % world_));
  const std::vector<float> weights(all.size(), 1.0f);
  device.Upload(all_ids_, std::as_bytes(std::span(all)));
  device.Upload(all_weights_, std::as_bytes(std::span(weights)));
}

RoutedTokens PairExchange::ToAllRanks(const TensorView& x, const TensorView& live,
                                      const TensorView& out) const {
  const int64_t tokens = x.dim(0);
  return {x, all_ids_.Slice(0, 0, tokens), all_weights_.Slice(0, 0, tokens), live, out};
}

void PairExchange::Run(OpRunner& run, const RoutedTokens& tokens, int64_t step_tokens,
                       const Compute& compute) {
  const Ops& ops = run.ops();
  for (int64_t first = 0; first < step_tokens;) {
    const ExpertExchange exchange = {.ranks = ranks_,
                                     .routed = routed_,
                                     .first = first,
                                     .each = EachOf(step_tokens - first),
                                     .stride = stride_,
                                     .offset = offset_};
    const int64_t pairs = MostPairs(exchange.each);
    const auto some = [&](const TensorView& view) { return view.Slice(0, 0, pairs); };
    run(ops.dispatch, {.x = tokens.x,
                       .ids = tokens.ids,
                       .live = tokens.live,
                       .exchange = exchange,
                       .pair_x = some(x_),
                       .pair_ids = some(ids_),
                       .pair_origin = some(origin_),
                       .pair_live = live_});
    compute({some(x_), some(ids_), some(ones_), live_, some(y_)});
    run(ops.combine, {.pair_y = some(y_),
                      .pair_origin = some(origin_),
                      .pair_live = live_,
                      .exchange = exchange,
                      .ids = tokens.ids,
                      .weights = tokens.weights,
                      .live = tokens.live,
                      .out = tokens.out});
    first += exchange.each * stride_;
  }
}

}  // namespace fathom
