// Which part of a model is a rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/schema.h"
#include "ops/ops.h"
#include "parallel/communicator.h"
#include "parallel/layout.h"
#include "quant/weight_tensor.h"

namespace fathom {

// A rank's place in a layout, and whom it shares with.
struct Shard {
  ParallelLayout layout;
  int tensor_rank = 0, data_rank = 0;
  // These must outlive the model.
  Communicator* tensor_group = nullptr;  // null: one rank
  Communicator* world = nullptr;         // all ranks, if experts lie over them: by world_rank()

  int world_rank() const { return data_rank * layout.tensor + tensor_rank; }

  // Its share of n heads, or of n elements of an MLP or of the vocabulary.
  Share Heads(int64_t n) const { return ShareOf(n, 1, layout.tensor, tensor_rank); }
  Share Of(int64_t n) const {
    return ShareOf(n, ShareUnit(n, layout.tensor), layout.tensor, tensor_rank);
  }
  // Which of n routed experts it has, in whole or cut.
  Share Experts(int64_t n) const {
    return layout.expert_parallel() ? ShareOf(n, 1, layout.world(), world_rank()) : Share{0, n};
  }
};

// What one rank computes of a model: the configuration with its heads alone.
ModelConfig ConfigOfRank(const ModelConfig& config, const Shard& shard);

// The rank's part of a weight that is cut along `axis`, as a view. Latents, routers and norms are
// every rank's.
WeightTensor PartOf(const WeightTensor& whole, ShardAxis axis, const ModelConfig& config,
                    const Shard& shard);

// A tensor's bytes where it is stored, scales included; 0: it is not there.
using StoredBytes = std::function<uint64_t(const SchemaEntry&)>;
// Bytes of the rank's weights on a device, but for borders that cut scale tiles, if matrices stay
// in the type in which they are stored; W_UK and W_UV stand there once more for the absorbed form.
size_t PartBytes(const ModelConfig& config, const Ops& ops, const Shard& shard,
                 const StoredBytes& stored);

// Whether all ranks have all of a tensor.
bool IsReplicated(const SchemaEntry& entry, const ParallelLayout& layout);

// kInvalidArgument, naming sizes that would do, for what a model cannot be cut into.
Status CheckLayout(const ModelConfig& config, const ParallelLayout& layout);

}  // namespace fathom
