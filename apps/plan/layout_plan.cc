#include "layout_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/ids.h"
#include "model/model.h"
#include "model/shard.h"
#include "parallel/peer_view.h"

namespace fathom {
namespace {

// Of the op that needs most: experts' pairs, as Hopper's kernels lay them out (grouped_gemm_cuda.cc
// for FP8, bf16_experts_cuda.cu). A loaded model measures it; without a device this is near.
size_t WorkSpaceBytes(const ModelConfig& config, const Ops& ops, const Shard& shard,
                      int64_t tokens) {
  const int64_t hidden = config.hidden_size, each = config.num_experts_per_tok;
  if (config.n_routed_experts == 0) {
    return static_cast<size_t>(tokens * shard.Of(config.intermediate_size).size() * 2);
  }
  int64_t pairs = tokens * (each + config.n_shared_experts);
  const int64_t inter = shard.OfExpert(config.moe_intermediate_size).size();
  if (shard.layout.exchanges_tokens()) {
    const int world = shard.layout.stage_ranks();
    const int64_t local = shard.Experts(config.n_routed_experts).size();
    const int64_t at_a_time = std::min(ops.exchange_tokens / world, tokens / shard.layout.tensor);
    const int64_t others = shard.layout.cuts_over_groups() ? world : 1;  // shared experts' tokens
    pairs = at_a_time * (world * std::min(each, local) + others * config.n_shared_experts);
  }
  const int64_t scales = (hidden + 127) / 128 + (inter + 127) / 128;
  const int64_t of_pair = config.fp8 ? 3 * hidden + inter + 4 * scales : 2 * (hidden + inter);
  return static_cast<size_t>(pairs * of_pair);
}

// Of a rank's exchanges: between GPUs of one host, and where they span hosts.
size_t ExchangeBytes(const ParallelLayout& layout, int gpus_each, int rank) {
  if (gpus_each == 0) return PeerBytes(layout);
  const PeersElsewhere over = ElsewhereOf(layout, gpus_each, rank);
  const int stage = layout.StageOf(rank);
  const auto bytes = [](bool there, int elsewhere, int size) -> size_t {
    if (!there) return 0;
    return elsewhere > 0 ? WindowsBytes(size) : sizeof(PeerExchange) + sizeof(PeerCounters);
  };
  return bytes(layout.tensor > 1, over.tensor, layout.tensor) +
         bytes(layout.exchanges_tokens(), over.experts, layout.stage_ranks()) +
         bytes(stage > 0, over.before, 2) + bytes(stage + 1 < layout.pipeline, over.after, 2) +
         bytes(layout.pipeline > 1, over.stages, layout.pipeline);
}

}  // namespace

PeersElsewhere ElsewhereOf(const ParallelLayout& layout, int gpus_each, int rank) {
  if (gpus_each == 0) return {};
  const auto count = [&](int first, int step, int ranks) {
    int elsewhere = 0;
    for (int i = 0; i < ranks; ++i) {
      elsewhere += (first + i * step) / gpus_each != rank / gpus_each ? 1 : 0;
    }
    return elsewhere;
  };
  const int each = layout.stage_ranks(), stage = layout.StageOf(rank);
  return {.tensor = count(rank - rank % layout.tensor, 1, layout.tensor),
          .experts = layout.exchanges_tokens() ? count(stage * each, 1, each) : 0,
          .before = stage > 0 ? count(rank - each, 1, 1) : 0,
          .after = stage + 1 < layout.pipeline ? count(rank + each, 1, 1) : 0,
          .stages = count(rank % each, each, layout.pipeline)};
}

size_t LayoutPlan::fullest() const {
  const auto pages = [](const RankPlan& rank) { return rank.memory.num_pages; };
  return static_cast<size_t>(std::ranges::min_element(ranks, {}, pages) - ranks.begin());
}

int64_t LayoutPlan::group_cache_tokens() const {
  return ranks[fullest()].memory.num_pages * kPageTokens;
}

Result<LayoutPlan> PlanLayout(const PlannedModel& model, const ParallelLayout& layout,
                              const AssemblyOptions& options, const PlannedHosts& hosts) {
  const auto& [config, sizes, ops] = model;
  TRY(CheckLimits(config, ops, layout));
  LayoutPlan plan{.layout = layout};
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Shard shard = Shard::OfRank(layout, rank, {});
    const int64_t tokens = options.limits.max_num_batched_tokens;
    const MemoryNeeds needs = NeedsAhead(config, ops, shard, options,
                                         {.weights = PartBytes(config, ops, shard, sizes),
                                          .peers = ExchangeBytes(layout, hosts.gpus_each, rank),
                                          .workspace = WorkSpaceBytes(config, ops, shard, tokens),
                                          .cached_layers = CachedLayers(config, shard, sizes),
                                          .available = hosts.memory_bytes,
                                          .records = hosts.gpus_each <= 1});
    plan.ranks.push_back({.memory = TRY(PlanMemory(needs)),
                          .replicated_bytes = ReplicatedBytes(config, ops, shard, sizes)});
  }
  return plan;
}

std::vector<ParallelLayout> LayoutsOf(int gpus, bool has_experts) {
  std::vector<ParallelLayout> layouts;
  for (int stages = 1; stages <= gpus; ++stages) {
    if (gpus % stages != 0) continue;
    const int ranks = gpus / stages;
    for (int tensor = ranks; tensor >= 1; --tensor) {
      if (ranks % tensor != 0) continue;
      const int data = ranks / tensor;
      layouts.push_back({.tensor = tensor, .data = data, .pipeline = stages});
      if (has_experts && ranks > 1) {
        layouts.push_back({.tensor = tensor, .data = data, .pipeline = stages, .experts = true});
      }
    }
  }
  return layouts;
}

std::string Describe(const ParallelLayout& layout) {
  if (layout.world() == 1) return "one GPU";
  std::vector<std::string> sizes;
  if (layout.pipeline > 1) sizes.push_back(fmt::format("pp {}", layout.pipeline));
  if (layout.tensor > 1) sizes.push_back(fmt::format("tp {}", layout.tensor));
  if (layout.data > 1) sizes.push_back(fmt::format("dp {}", layout.data));
  return fmt::format("{}{}", fmt::join(sizes, " x "), layout.experts ? " + ep" : "");
}

}  // namespace fathom
