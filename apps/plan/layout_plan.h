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

  // Of one group: what its fullest rank has room for.
  int64_t group_cache_tokens() const;
};

// Limits are those of each group, filled in. What start-up would refuse is refused, as it would.
Result<LayoutPlan> PlanLayout(const ModelConfig& config, const Ops& ops,
                              const ParallelLayout& layout, const AssemblyOptions& options,
                              int64_t memory_bytes);

// Every layout of exactly so many ranks, whether or not the model can be cut so.
std::vector<ParallelLayout> LayoutsOf(int gpus, bool has_experts);

// "tp 2 x dp 4 + ep", "one GPU".
std::string Describe(const ParallelLayout& layout);

}  // namespace fathom
