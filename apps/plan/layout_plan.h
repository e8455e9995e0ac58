// What a layout's ranks would have in memory, by the code that plans at start-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "engine/assembly.h"
#include "engine/memory_plan.h"
#include "model/shard.h"
#include "ops/ops.h"
#include "parallel/layout.h"

namespace fathom {

struct RankPlan {
  MemoryPlan memory;
  size_t replicated_bytes = 0;  // of its weights: all ranks have them
};

struct LayoutPlan {
  ParallelLayout layout;
  std::vector<RankPlan> ranks;

  // The first of those whose cache has room for least.
  size_t fullest() const;
  // Of one group: what that one has room for.
  int64_t group_cache_tokens() const;
};

// A GPU's memory, and how many GPUs each host has; 0: all are of one host.
struct PlannedHosts {
  int64_t memory_bytes = 0;
  int gpus_each = 0;
};

// What is planned, of whatever layout.
struct PlannedModel {
  const ModelConfig& config;
  const TensorSizes& sizes;
  const Ops& ops;
};

// Limits are those of each group, filled in. What start-up would refuse is refused, as it would.
Result<LayoutPlan> PlanLayout(const PlannedModel& model, const ParallelLayout& layout,
                              const AssemblyOptions& options, const PlannedHosts& hosts);

// Of those that a rank exchanges something with, how many are on other hosts.
struct PeersElsewhere {
  int tensor = 0, experts = 0;  // of its group; of all groups, if tokens travel to experts
  int before = 0, after = 0;    // the stages beside it
  int stages = 0;               // all of them
};
PeersElsewhere ElsewhereOf(const ParallelLayout& layout, int gpus_each, int rank);

// Every layout of exactly so many ranks, whether or not the model can be cut so.
std::vector<ParallelLayout> LayoutsOf(int gpus, bool has_experts);

// "tp 2 x dp 4 + ep", "one GPU".
std::string Describe(const ParallelLayout& layout);

}  // namespace fathom
