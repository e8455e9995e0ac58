// What each rank of a layout gets of a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "parallel/layout.h"

namespace fathom {

struct PartOfRank {
  int stage = 0, group = 0;
  Share layers, heads, experts, vocabulary;  // experts: those it has, cut or whole
  Share expert_channels;                     // inner ones, of each expert that it has
  bool has_embedding = false, has_head = false;
  int64_t weight_bytes = 0;  // on a GPU, if matrices stay in the type in which they are stored
};

// kInvalidArgument, naming sizes that would do, for what the model cannot be cut into.
Result<std::vector<PartOfRank>> PartsOfRanks(const Checkpoint& checkpoint,
                                             const ParallelLayout& layout);

}  // namespace fathom
