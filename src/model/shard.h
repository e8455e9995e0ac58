// Which part of a model is a rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/schema.h"
#include "ops/ops.h"
#include "parallel/layout.h"
#include "parallel/rank_groups.h"
#include "quant/weight_tensor.h"

namespace fathom {

// A rank's place in a layout, and whom it shares with.
struct Shard {
  ParallelLayout layout;
  int tensor_rank = 0, data_rank = 0, stage = 0;
  RankGroups groups;  // which must outlive the model

  static Shard OfRank(const ParallelLayout& layout, int rank, const RankGroups& groups) {
    return {layout, rank % layout.tensor, layout.GroupOf(rank), layout.StageOf(rank), groups};
  }
  int rank_in_stage() const { return data_rank * layout.tensor + tensor_rank; }
  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage == layout.pipeline - 1; }  // it has head and MTP layers

  // Its share of n heads, or of n elements of a dense MLP or of the vocabulary.
  Share Heads(int64_t n) const { return ShareOf(n, 1, layout.tensor, tensor_rank); }
  Share Of(int64_t n) const {
    return ShareOf(n, ShareUnit(n, layout.tensor), layout.tensor, tensor_rank);
  }
  // Its share of an expert's n inner channels: of one that is cut all ranks of the stage have one.
  Share OfExpert(int64_t n) const {
    const int ranks = layout.expert_parallel() ? 1 : layout.stage_ranks();
    return ShareOf(n, ShareUnit(n, ranks), ranks, ranks == 1 ? 0 : rank_in_stage());
  }
  // Which of n routed experts it has, in whole or cut.
  Share Experts(int64_t n) const {
    return layout.expert_parallel() ? ShareOf(n, 1, layout.stage_ranks(), rank_in_stage())
                                    : Share{0, n};
  }
};

// What one rank computes of a model: the configuration with its heads alone.
ModelConfig ConfigOfRank(const ModelConfig& config, const Shard& shard);

// The rank's part of a weight that is cut along `axis`, as a view. Latents, routers and norms are
// every rank's.
WeightTensor PartOf(const WeightTensor& whole, ShardAxis axis, const ModelConfig& config,
                    const Shard& shard);
// Likewise of a matrix of one expert.
WeightTensor PartOfExpert(const WeightTensor& whole, ShardAxis axis, const Shard& shard);

struct TensorSize {
  SchemaEntry entry;
  uint64_t bytes;  // where it is stored, scales included
};
// Those of a model, in the schema's order. V3 has some 45,000: they are made once for all ranks.
using TensorSizes = std::vector<TensorSize>;
// bytes(entry) 0: it is not there.
TensorSizes TensorSizesOf(const ModelConfig& config,
                          const std::function<uint64_t(const SchemaEntry&)>& bytes);
// As DeepSeek publishes them (PublishedBytes).
TensorSizes PublishedSizes(const ModelConfig& config);

// Bytes of the rank's weights on a device, but for borders that cut scale tiles, if matrices stay
// in the type in which they are stored; W_UK and W_UV stand there once more for the absorbed form.
size_t PartBytes(const ModelConfig& config, const Ops& ops, const Shard& shard,
                 const TensorSizes& stored);
// Of these: those of tensors that all ranks of its stage have all of.
size_t ReplicatedBytes(const ModelConfig& config, const Ops& ops, const Shard& shard,
                       const TensorSizes& stored);

// The layers of the rank's stage, MTP layers aside: such that the stage with most bytes of weights,
// embedding and head with them, has the least that it can, and of such cuts one in which the stage
// that reads most of them for a token reads the least.
Share LayersOf(const ModelConfig& config, const Shard& shard, const TensorSizes& stored);
// Layers that a rank has pages of.
int64_t CachedLayers(const ModelConfig& config, const Shard& shard, const TensorSizes& stored);
// Whether the rank looks tokens up: drafts begin with their embeddings too.
bool HasEmbedding(const ModelConfig& config, const Shard& shard);

// kInvalidArgument, naming sizes that would do, for what a model cannot be cut into.
Status CheckLayout(const ModelConfig& config, const ParallelLayout& layout);

}  // namespace fathom
