#include "model/shard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace fathom {

ModelConfig ConfigOfRank(const ModelConfig& config, const Shard& shard) {
  ModelConfig part = config;
  part.num_heads = static_cast<int32_t>(shard.Heads(config.num_heads).size());
  return part;
}

namespace {

bool IsByHead(ShardAxis axis) {
  return axis == ShardAxis::kHeadOutputs || axis == ShardAxis::kHeadChannels;
}

// The dimension that is cut along `axis`.
int Dimension(ShardAxis axis) {
  return axis == ShardAxis::kChannels || axis == ShardAxis::kHeadChannels ? 1 : 0;
}

// The rank's share of a dimension of this size.
Share ShareAlong(ShardAxis axis, int64_t size, const ModelConfig& config, const Shard& shard) {
  if (axis == ShardAxis::kNone) return {0, size};
  if (!IsByHead(axis)) return shard.Of(size);
  const Share heads = shard.Heads(config.num_heads);
  const int64_t each = size / config.num_heads;
  return {heads.begin * each, heads.end * each};
}

}  // namespace

WeightTensor PartOf(const WeightTensor& whole, ShardAxis axis, const ModelConfig& config,
                    const Shard& shard) {
  if (shard.layout.tensor == 1 || axis == ShardAxis::kNone) return whole;
  const int dimension = Dimension(axis);
  const Share share = ShareAlong(axis, whole.values.dim(dimension), config, shard);
  return (dimension == 1 ? SliceChannels : SliceOutputs)(whole, share.begin, share.end);
}

size_t PartBytes(const Checkpoint& checkpoint, const Shard& shard) {
  const ModelConfig& config = checkpoint.config();
  double bytes = 0;
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    if (!checkpoint.Has(entry.name)) continue;
    const ShardAxis axis = entry.rule->axis;
    const int64_t size = Shape(*entry.rule, config)[static_cast<size_t>(Dimension(axis))];
    const double share = static_cast<double>(ShareAlong(axis, size, config, shard).size());
    bytes += static_cast<double>(checkpoint.Bytes(entry.name)) * share / static_cast<double>(size);
  }
  return static_cast<size_t>(bytes);
}

Status CheckLayout(const ModelConfig& config, const ParallelLayout& layout) {
  const auto possible = [&](int ranks) {
    return config.num_heads % ranks == 0 && ShareUnit(config.vocab_size, ranks) > 0 &&
           ShareUnit(config.intermediate_size, ranks) > 0 &&
           (config.n_routed_experts == 0 || ShareUnit(config.moe_intermediate_size, ranks) > 0);
  };
  if (layout.tensor >= 1 && possible(layout.tensor)) return {};
  std::vector<int> sizes;
  for (int ranks = 1; ranks <= config.num_heads; ++ranks) {
    if (possible(ranks)) sizes.push_back(ranks);
  }
  return InvalidArgument(
      "--tensor-parallel-size {}: the model's {} heads cannot be shared out evenly; {} would do",
      layout.tensor, config.num_heads, fmt::join(sizes, ", "));
}

}  // namespace fathom
