#include "inspect_ranks.h"

#include "model/shard.h"
#include "model/weights.h"
#include "ops/cuda_properties.h"

namespace fathom {

Result<std::vector<PartOfRank>> PartsOfRanks(const Checkpoint& checkpoint,
                                             const ParallelLayout& layout) {
  const ModelConfig& config = checkpoint.config();
  TRY(CheckLayout(config, layout));
  const Ops ops = CudaProperties(/*hopper=*/true);
  const TensorSizes stored = SizesIn(checkpoint);
  std::vector<PartOfRank> parts;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Shard shard = Shard::OfRank(layout, rank, {});
    parts.push_back({.stage = shard.stage,
                     .group = shard.data_rank,
                     .layers = LayersOf(config, shard, stored),
                     .heads = shard.Heads(config.num_heads),
                     .experts = shard.Experts(config.n_routed_experts),
                     .vocabulary = shard.Of(config.vocab_size),
                     .expert_channels = config.n_routed_experts == 0
                                            ? Share()
                                            : shard.OfExpert(config.moe_intermediate_size),
                     .has_embedding = HasEmbedding(config, shard),
                     .has_head = shard.last_stage(),
                     .weight_bytes = static_cast<int64_t>(PartBytes(config, ops, shard, stored))});
  }
  return parts;
}

}  // namespace fathom
