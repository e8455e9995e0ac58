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

}  // namespace

int64_t LayoutPlan::group_cache_tokens() const {
  int64_t pages = INT64_MAX;
  for (const RankPlan& rank : ranks) pages = std::min(pages, rank.memory.num_pages);
  return pages * kPageTokens;
}

Result<LayoutPlan> PlanLayout(const ModelConfig& config, const Ops& ops,
                              const ParallelLayout& layout, const AssemblyOptions& options,
                              int64_t memory_bytes) {
  TRY(CheckLimits(config, ops, layout));
  LayoutPlan plan{.layout = layout};
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Shard shard = Shard::OfRank(layout, rank, {});
    const auto bytes = [&](bool all) {
      return PartBytes(config, ops, shard, [&](const SchemaEntry& entry) -> uint64_t {
        return all || IsReplicated(entry, layout) ? PublishedBytes(entry, config) : 0;
      });
    };
    const auto published = [&](const SchemaEntry& entry) { return PublishedBytes(entry, config); };
    const int64_t tokens = options.limits.max_num_batched_tokens;
    const MemoryNeeds needs = NeedsAhead(config, ops, shard, options,
                                         {.weights = bytes(true),
                                          .peers = PeerBytes(layout),
                                          .workspace = WorkSpaceBytes(config, ops, shard, tokens),
                                          .cached_layers = CachedLayers(config, shard, published),
                                          .available = memory_bytes});
    plan.ranks.push_back({.memory = TRY(PlanMemory(needs)), .replicated_bytes = bytes(false)});
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
