// The models of this host's ranks, read from one checkpoint at the same time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/assembly.h"

namespace fathom {

// Of each rank its part, on a thread of its own, within a ReadWindow. `progress` is the first
// rank's. Says in the log how much was read.
Result<std::vector<std::unique_ptr<Model>>> LoadModels(const Checkpoint& checkpoint, const Ops& ops,
                                                       std::span<const EngineRank> ranks,
                                                       const ModelOptions& options,
                                                       const LoadProgress& progress);

}  // namespace fathom
